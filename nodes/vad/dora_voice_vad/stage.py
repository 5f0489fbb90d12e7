"""Turns what is heard in the sessions into segments on the wire."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable

from dora_voice.audio import EMPTY, Samples
from dora_voice.messages import SOURCE_RATE_HZ, Audio, Control, Message, Played, Segment
from dora_voice.stage import Surroundings, Work
from dora_voice_vad.endpointing import WINDOW_SAMPLES, EnoughSpeech, Event, FalseAlarm, HardEnd, Limits, Onset, Speech
from dora_voice_vad.listener import Detector, Listener
from dora_voice_vad.segments import Segments

log = logging.getLogger("dora_voice.vad")

IDS_PER_RESTART = 1_000_000
MOST_NUMBERED_SESSIONS = 1024


class VadStage:
    def __init__(self, new_detector: Callable[[], Detector], limits: Limits, most_sessions: int) -> None:
        self._new_detector = new_detector
        self._limits = limits
        self._most_sessions = most_sessions
        self._first_id = 1
        self._listeners: OrderedDict[str, Listener] = OrderedDict()
        # Outlives the listeners: ids never go back, also when a session is finished and comes again.
        self._numbers: OrderedDict[str, Segments] = OrderedDict()

    def started(self, surroundings: Surroundings) -> None:
        self._first_id = surroundings.restarts * IDS_PER_RESTART + 1

    def process(self, message: Message) -> Work | None:
        if isinstance(message, Played):
            session_id, segment_id = message.segment
            self._segments(session_id).played(segment_id, is_over=message.fin)
        return self._listen(message) if isinstance(message, Audio) else None

    def lost(self, port: str, for_good: bool) -> None:
        """The speaker has gone, and its replies with it."""
        for segments in self._numbers.values():
            segments.all_over()

    def finish(self, session_id: str) -> Work:
        """An open segment ends here: committed if it holds enough speech, dropped if not."""
        if listener := self._listeners.pop(session_id, None):
            yield from self._hear(session_id, listener, listener.last_windows())
            yield from self._tell(session_id, listener, listener.finish())

    def ended(self, session_id: str) -> None:
        self._listeners.pop(session_id, None)

    def _listen(self, audio: Audio) -> Work:
        session_id = audio.segment.session_id
        if audio.error is not None:
            # The source broke off: what comes next is another stream.
            yield from self.finish(session_id)
            return
        if session_id not in self._listeners:
            self._listeners[session_id] = Listener(self._new_detector(), self._limits, audio.audio_ms or 0)
        listener = self._listeners[session_id]
        self._listeners.move_to_end(session_id)
        if len(self._listeners) > self._most_sessions:
            oldest = next(iter(self._listeners))
            log.warning("session=%s is ended: SESSIONS=%d is the most at a time", oldest, self._most_sessions)
            yield from self.finish(oldest)
        yield from self._hear(session_id, listener, listener.windows(audio.samples, audio.sample_rate))

    def _hear(self, session_id: str, listener: Listener, windows: Iterable[Samples]) -> Work:
        for window in windows:
            try:
                events = listener.hear(window)
            except Exception as error:
                log.exception("the detector failed in session=%s segment=%s", session_id, listener.segment_id)
                yield from _give_up(session_id, listener, error)
            else:
                yield from self._tell(session_id, listener, events)
            yield

    def _tell(self, session_id: str, listener: Listener, events: Iterable[Event]) -> Work:
        segments = self._segments(session_id)
        for event in events:
            if isinstance(event, Onset):
                listener.segment_id = segments.mint()
            segment = listener.open_segment(session_id)
            match event:
                case Onset(at):
                    yield _control("start", segment, listener.ms(at))
                case Speech(begin, end):
                    for at in range(begin, end, WINDOW_SAMPLES):
                        yield _speech(segment, listener.ms(at), listener.samples(at, min(at + WINDOW_SAMPLES, end)))
                case EnoughSpeech(at):
                    if segments.flush(segment.segment_id):
                        yield _control("flush", segment, listener.ms(at))
                case HardEnd(at):
                    listener.segment_id = None
                    # Too short to interrupt, but said, and to be answered now.
                    if segments.flush(segment.segment_id):
                        yield _control("flush", segment, listener.ms(at))
                    segments.committed(segment.segment_id)
                    yield _speech(segment, listener.ms(at), fin=True)
                    yield _control("commit", segment, listener.ms(at))
                case FalseAlarm(at):
                    listener.segment_id = None
                    yield _control("drop", segment, listener.ms(at))

    def _segments(self, session_id: str) -> Segments:
        segments = self._numbers.setdefault(session_id, Segments(self._first_id))
        self._numbers.move_to_end(session_id)
        if len(self._numbers) > MOST_NUMBERED_SESSIONS:
            self._numbers.popitem(last=False)
        return segments


def _give_up(session_id: str, listener: Listener, error: Exception) -> Work:
    """The open segment, if there is one, did happen, but can't be served."""
    if listener.segment_id is None:
        return
    segment, listener.segment_id = listener.open_segment(session_id), None
    yield _speech(segment, listener.ms(listener.position), fin=True, error=f"{type(error).__name__}: {error}")
    yield _control("commit", segment, listener.ms(listener.position))


def _control(verb: str, segment: Segment, audio_ms: int) -> Control:
    return Control(
        port="control",
        verb=verb,
        session_id=segment.session_id,
        segment_id=segment.segment_id,
        flush=verb == "flush",
        audio_ms=audio_ms,
    )


def _speech(
    segment: Segment, audio_ms: int, samples: Samples = EMPTY, *, fin: bool = False, error: str | None = None
) -> Audio:
    return Audio(
        port="speech",
        session_id=segment.session_id,
        segment_id=segment.segment_id,
        samples=samples,
        sample_rate=SOURCE_RATE_HZ,
        audio_ms=audio_ms,
        fin=fin,
        error=error,
    )
