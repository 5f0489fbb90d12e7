"""The speaker as a stage: audio in, sound out at the speed of a real speaker, reports of what was heard."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Generator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dora_voice.messages import SPEAKER_RATE_HZ, Audio, Control, Message, Played, Segment
from dora_voice.stage import Surroundings, Wait, Work
from dora_voice_speaker.playback import Playback, Report
from dora_voice_speaker.reply import Underruns

log = logging.getLogger("dora_voice.speaker")

TICK_MS = 10
MOST_SAMPLES_AT_ONCE = SPEAKER_RATE_HZ
MOST_SESSIONS = 256
MOST_REFUSED = 1024
LOG_EVERY = 1000


class Backend(Protocol):
    def begin(self, restarts: int) -> None:
        """Everybody is connected; after a restart what was played before is kept."""
        ...

    def play(self, sound: NDArray[np.float32]) -> None:
        """Takes the next sound, 24 kHz float32 mono."""
        ...

    def close(self) -> None: ...


class SpeakerStage:
    """`is_fast` plays what there is at once instead of at the speed of sound (for tests)."""

    def __init__(self, backend: Backend, *, is_fast: bool, longest_pause_ms: int, longest_queue_s: int) -> None:
        self._backend = backend
        self._is_fast = is_fast
        self._longest_pause = longest_pause_ms * SPEAKER_RATE_HZ // 1000
        self._longest_queue = longest_queue_s * SPEAKER_RATE_HZ
        self._playbacks: dict[str, Playback] = {}
        self._refused: OrderedDict[Segment, None] = OrderedDict()
        """Replies for whose session there was no room, or not any more."""
        self._cut_sessions = 0

    def started(self, surroundings: Surroundings) -> None:
        self._clock = surroundings.clock
        self._backend.begin(surroundings.restarts)

    def process(self, message: Message) -> Work | None:
        if isinstance(message, Audio):
            return self._hear(message)
        session_id, segment_id = message.segment
        if isinstance(message, Control):
            match message.verb:
                case "pause":
                    # Also before the session's first audio: that is held when it comes.
                    return self._hold(message.segment)
                case "commit" if session_id in self._playbacks:
                    self._playbacks[session_id].commit(segment_id)
                case "resume" if session_id in self._playbacks:
                    self._playbacks[session_id].resume(segment_id)
        return None

    def flushed(self, segment: Segment) -> None:
        if playback := self._playbacks.get(segment.session_id):
            playback.flush(segment.segment_id)

    def dropped(self, segment: Segment) -> None:
        if playback := self._playbacks.get(segment.session_id):
            playback.drop(segment.segment_id)

    def run(self) -> Work:
        """Plays, and reports what was played."""
        began_s, played = self._clock(), 0
        while True:
            yield from self._report()
            if self._is_fast:
                due = max((playback.ready for playback in self._playbacks.values()), default=0)
                if not due:
                    # Replies without a sample end here.
                    self._play(0)
                    yield from self._report()
                    due = yield from self._wait()
            else:
                yield Wait(at_most_ms=TICK_MS)
                due = round((self._clock() - began_s) * SPEAKER_RATE_HZ) - played
                played += due
            for start in range(0, due, MOST_SAMPLES_AT_ONCE):
                self._play(min(MOST_SAMPLES_AT_ONCE, due - start))
                yield from self._report()

    def finish(self, session_id: str) -> Work:
        """Plays the last reply to its end."""
        if playback := self._playbacks.get(session_id):
            playback.complete()
        while (playback := self._playbacks.get(session_id)) and playback.is_busy:
            # When a fade is over, nothing is reported that would wake us.
            yield Wait(at_most_ms=TICK_MS)
        yield from self._report()

    def ended(self, session_id: str) -> None:
        self._playbacks.pop(session_id, None)
        for segment in [refused for refused in self._refused if refused.session_id == session_id]:
            del self._refused[segment]

    def close(self) -> None:
        self._backend.close()

    def _hear(self, audio: Audio) -> Work:
        if audio.segment in self._refused:
            return
        cut = self._make_room(audio.segment.session_id)
        if playback := self._playback(audio.segment.session_id):
            self._queue(playback, audio)
        else:
            log.warning("session=%s segment=%d: not played, %d sessions play", *audio.segment, MOST_SESSIONS)
            self._refuse(audio.segment)
            cut.append(_played(audio.segment.session_id, Report(audio.segment.segment_id, 0, 0, is_last=True)))
        yield from cut

    def _hold(self, segment: Segment) -> Work:
        cut = self._make_room(segment.session_id)
        if playback := self._playback(segment.session_id):
            playback.pause(segment.segment_id)
        yield from cut

    def _playback(self, session_id: str) -> Playback | None:
        """That of this session, which is the newest now; None if there is no room for it."""
        playback = self._playbacks.pop(session_id, None)
        if playback is None and len(self._playbacks) == MOST_SESSIONS:
            return None
        playback = playback or Playback(self._longest_pause, self._longest_queue)
        self._playbacks[session_id] = playback
        return playback

    def _make_room(self, session_id: str) -> list[Played]:
        """For this session, if it is new: another goes, idle or silent, but none that is heard.

        Returns how the replies of that one ended.
        """
        if session_id in self._playbacks or len(self._playbacks) < MOST_SESSIONS:
            return []
        other_id = min(self._playbacks, key=lambda other: _liveliness(self._playbacks[other]))
        other = self._playbacks[other_id]
        if other.ready:
            return []
        del self._playbacks[other_id]
        if other.is_busy:
            self._cut_sessions += 1
            if self._cut_sessions % LOG_EVERY == 1:
                log.warning(
                    "session=%s: cut, %d are the most at once (%d cut so far)",
                    *(other_id, MOST_SESSIONS, self._cut_sessions),
                )
        other.drop_all()
        reports = list(iter(other.next_report, None))
        for report in reports:
            if report.is_last:
                self._refuse(Segment(other_id, report.segment_id))
        return [_played(other_id, report) for report in reports]

    def _refuse(self, reply: Segment) -> None:
        """What still comes of it isn't played."""
        self._refused[reply] = None
        if len(self._refused) > MOST_REFUSED:
            self._refused.popitem(last=False)

    def _queue(self, playback: Playback, audio: Audio) -> None:
        session_id, segment_id = audio.segment
        known = set(playback.dropped)
        playback.add(
            segment_id,
            audio.samples,
            audio.text_end,
            rate_hz=audio.sample_rate,
            fin=audio.fin,
            speculative=audio.speculative,
        )
        for reason in playback.dropped.keys() - known:
            log.warning("session=%s segment=%d: audio is dropped: %s", session_id, segment_id, reason)

    def _wait(self) -> Generator[Wait, Any, int]:
        """Until there may be more to play. Returns for how many samples, where what waits goes by time."""
        began_s, is_timed = self._clock(), any(playback.is_timed for playback in self._playbacks.values())
        yield Wait(at_most_ms=TICK_MS if is_timed else None)
        return round((self._clock() - began_s) * SPEAKER_RATE_HZ) if is_timed else 0

    def _play(self, samples: int) -> None:
        mixed = np.zeros(samples, np.float32)
        for playback in self._playbacks.values():
            mixed += playback.play(samples)
        self._backend.play(mixed)

    def _report(self) -> Work:
        """One by one: `finish` may come in between, and sends the rest."""
        while played := self._next_report():
            yield played

    def _next_report(self) -> Played | None:
        for session_id, playback in self._playbacks.items():
            if report := playback.next_report():
                if report.underruns.times and not self._is_fast:
                    _log_underruns(session_id, report, playback.underruns)
                return _played(session_id, report)
        return None


def _liveliness(playback: Playback) -> tuple[bool, bool]:
    return playback.ready > 0, playback.is_busy


def _log_underruns(session_id: str, report: Report, of_session: Underruns) -> None:
    log.info(
        "session=%s segment=%d underruns=%d samples=%d session_underruns=%d session_samples=%d",
        *(session_id, report.segment_id, report.underruns.times, report.underruns.samples),
        *(of_session.times, of_session.samples),
    )


def _played(session_id: str, report: Report) -> Played:
    return Played(
        port="played",
        session_id=session_id,
        segment_id=report.segment_id,
        samples=report.samples,
        text_end=report.text_end,
        fin=report.is_last,
    )
