"""The speaker as a stage: audio in, sound out at the speed of a real speaker, reports of what was heard."""

from __future__ import annotations

import logging
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dora_voice.audio import RateConverter
from dora_voice.messages import SPEAKER_RATE_HZ, Audio, Control, Message, Played, Segment
from dora_voice.stage import Surroundings, Wait, Work
from dora_voice_speaker.playback import Playback, Report
from dora_voice_speaker.reply import Underruns

log = logging.getLogger("dora_voice.speaker")

TICK_MS = 10
MOST_SAMPLES_AT_ONCE = SPEAKER_RATE_HZ
MOST_IDLE = 256
"""Sessions that are kept although nothing of them is waiting to be played."""


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
        self._converters: dict[Segment, RateConverter] = {}

    def started(self, surroundings: Surroundings) -> None:
        self._clock = surroundings.clock
        self._backend.begin(surroundings.restarts)

    def process(self, message: Message) -> None:
        session_id, segment_id = message.segment
        if isinstance(message, Audio):
            self._queue(self._playback(session_id), message)
        elif isinstance(message, Control):
            match message.verb:
                case "pause":
                    # Also before the session's first audio: that is held when it comes.
                    self._playback(session_id).pause(segment_id)
                case "commit" if session_id in self._playbacks:
                    self._playbacks[session_id].commit(segment_id)
                case "resume" if session_id in self._playbacks:
                    self._playbacks[session_id].resume(segment_id)

    def flushed(self, segment: Segment) -> None:
        for older in [known for known in self._converters if known.is_older_than(segment)]:
            del self._converters[older]
        if playback := self._playbacks.get(segment.session_id):
            playback.flush(segment.segment_id)

    def dropped(self, segment: Segment) -> None:
        self._converters.pop(segment, None)
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
                    yield Wait()
            else:
                yield Wait(at_most_ms=TICK_MS)
                due = round((self._clock() - began_s) * SPEAKER_RATE_HZ) - played
                played += due
            for start in range(0, due, MOST_SAMPLES_AT_ONCE):
                self._play(min(MOST_SAMPLES_AT_ONCE, due - start))
                yield from self._report()

    def finish(self, session_id: str) -> Work:
        """Plays the last reply to its end."""
        if not (playback := self._playbacks.get(session_id)):
            return
        playback.complete()
        while playback.is_busy:
            yield Wait()
        yield from self._report()

    def ended(self, session_id: str) -> None:
        self._playbacks.pop(session_id, None)
        for segment in [segment for segment in self._converters if segment.session_id == session_id]:
            del self._converters[segment]

    def close(self) -> None:
        self._backend.close()

    def _playback(self, session_id: str) -> Playback:
        if session_id not in self._playbacks:
            for idle in [known for known, playback in self._playbacks.items() if not playback.is_busy][:-MOST_IDLE]:
                del self._playbacks[idle]
            self._playbacks[session_id] = Playback(self._longest_pause, self._longest_queue)
        return self._playbacks[session_id]

    def _queue(self, playback: Playback, audio: Audio) -> None:
        dropped = playback.dropped_samples
        converter = self._converters.setdefault(audio.segment, RateConverter(SPEAKER_RATE_HZ))
        samples = converter.process(audio.samples, audio.sample_rate) if audio.samples.size else audio.samples
        if audio.fin:
            samples = np.concatenate([samples, converter.flush()])
            del self._converters[audio.segment]
        playback.add(audio.segment.segment_id, samples, audio.text_end, fin=audio.fin, speculative=audio.speculative)
        if playback.dropped_samples and not dropped:
            log.warning("session=%s: %d samples wait: QUEUE_MAX_S is reached", audio.session_id, playback.queued)

    def _play(self, samples: int) -> None:
        mixed = np.zeros(samples, np.float32)
        for playback in self._playbacks.values():
            mixed += playback.play(samples)
        self._backend.play(mixed)

    def _report(self) -> Work:
        for session_id, playback in list(self._playbacks.items()):
            for report in playback.take_reports():
                if report.underruns.times and not self._is_fast:
                    _log_underruns(session_id, report, playback.underruns)
                yield _played(session_id, report)


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
