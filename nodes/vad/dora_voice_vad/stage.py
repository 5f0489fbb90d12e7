"""Turns what is heard in the sessions into segments on the wire."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest

from dora_voice.audio import EMPTY, Samples
from dora_voice.messages import SOURCE_RATE_HZ, Audio, Control, Message, Played, Text
from dora_voice.stage import Surroundings, Wait, Work
from dora_voice_vad.endpointing import (
    WINDOW_SAMPLES,
    Event,
    FalseAlarm,
    HardEnd,
    Limits,
    Onset,
    Resumed,
    SoftEnd,
    Speech,
)
from dora_voice_vad.listener import JUDGED_SAMPLES, Detector, Judge, Listener
from dora_voice_vad.meaning import backchannels
from dora_voice_vad.replies import Replies
from dora_voice_vad.segments import Segments
from dora_voice_vad.turn_taking import LONGEST_UNTOLD_MS, Rules, TurnTaking, Verb

log = logging.getLogger("dora_voice.vad")

IDS_PER_RESTART = 1_000_000
MOST_NUMBERED_SESSIONS = 1024
LOOKS_UP_MS = 250


@dataclass(slots=True)
class Session:
    """What outlives the stream of one session: ids never go back, also when it is finished and comes again."""

    segments: Segments
    turns: TurnTaking
    replies: Replies = field(default_factory=Replies)
    is_fin_sent: bool = False
    """Of the open segment's speech."""
    heard_at_s: float = 0.0
    """When its last sound came, on the node's clock."""


class VadStage:
    def __init__(
        self,
        new_detector: Callable[[], Detector],
        limits: Limits,
        rules: Callable[[bool], Rules],
        *,
        own_backchannels: str,
        stall_ms: int,
        most_sessions: int,
        judge: Judge | None = None,
    ) -> None:
        """rules: for a dataflow that tells what is said, or doesn't.

        own_backchannels: instead of those of the language. stall_ms: without sound for so long, an utterance has ended.
        judge: says whether an utterance sounds finished.
        """
        self._new_detector = new_detector
        self._limits = limits
        self._new_rules = rules
        self._backchannels = own_backchannels
        self._stall_s = stall_ms / 1000
        self._most_sessions = most_sessions
        self._judge = judge
        self._first_id = 1
        self._listeners: OrderedDict[str, Listener] = OrderedDict()
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def started(self, surroundings: Surroundings) -> None:
        self._clock = surroundings.clock
        self._rules = self._new_rules("hypothesis" in surroundings.wired)
        self._first_id = surroundings.restarts * IDS_PER_RESTART + 1

    def process(self, message: Message) -> Work | None:
        if isinstance(message, Control) and message.verb == "end":
            return None
        session = self._session(message.segment.session_id)
        if not isinstance(message, Audio):
            session.segments.saw(message.segment.segment_id)
        if isinstance(message, Played):
            session.segments.played(message.segment.segment_id, message.samples, is_over=message.fin)
            session.replies.played(message)
        elif isinstance(message, Text) and message.port == "reply":
            session.replies.add(message)
        elif isinstance(message, Text):
            return self._read(message)
        elif isinstance(message, Audio):
            return self._listen(message)
        return None

    def run(self) -> Work:
        """Ends utterances whose sound has stopped to come: a microphone that was unplugged says nothing more."""
        while True:
            yield Wait(at_most_ms=LOOKS_UP_MS)
            for session_id, listener in list(self._listeners.items()):
                if listener.is_open and self._clock() - self._sessions[session_id].heard_at_s >= self._stall_s:
                    log.warning("session=%s: no sound for %g s: the utterance ends here", session_id, self._stall_s)
                    yield from self._tell(session_id, listener, listener.finish())

    def lost(self, port: str, for_good: bool) -> None:
        """The speaker has gone, and its replies with it; or the recogniser."""
        for session in self._sessions.values():
            if port == "played":
                session.segments.all_over()
            elif port == "hypothesis":
                session.turns.lose_text()

    def finish(self, session_id: str) -> Work:
        """The stream ends, and nothing more is owed then."""
        yield from self._end_stream(session_id)
        left_ms: float = LONGEST_UNTOLD_MS
        while left_ms > 0 and (session := self._sessions.get(session_id)) and session.turns.owes_flush:
            left_ms = yield Wait(at_most_ms=left_ms)

    def ended(self, session_id: str) -> None:
        self._listeners.pop(session_id, None)
        if session := self._sessions.get(session_id):
            session.turns.give_up()
            session.turns.lose_text()
            session.replies = Replies()

    def _end_stream(self, session_id: str) -> Work:
        """An open segment ends here: committed if it holds enough speech, dropped if not."""
        if listener := self._listeners.pop(session_id, None):
            yield from self._hear(session_id, listener, listener.last_windows())
            yield from self._tell(session_id, listener, listener.finish())

    def _listen(self, audio: Audio) -> Work:
        session_id = audio.segment.session_id
        if audio.error is not None:
            # The source broke off: what comes next is another stream.
            yield from self._end_stream(session_id)
            return
        if not audio.samples.size:
            return
        if session_id not in self._listeners:
            judged = JUDGED_SAMPLES if self._judge else 0
            self._listeners[session_id] = Listener(self._new_detector(), self._limits, audio.audio_ms or 0, judged)
        listener = self._listeners[session_id]
        self._listeners.move_to_end(session_id)
        if len(self._listeners) > self._most_sessions:
            oldest = next(iter(self._listeners))
            log.warning("session=%s is ended: SESSIONS=%d is the most at a time", oldest, self._most_sessions)
            yield from self._end_stream(oldest)
        # Between two windows this session may be ended for another one.
        windows = listener.windows(audio.samples, audio.sample_rate)
        yield from self._hear(
            session_id, listener, takewhile(lambda _: self._listeners.get(session_id) is listener, windows)
        )

    def _hear(self, session_id: str, listener: Listener, windows: Iterable[Samples]) -> Work:
        turns = self._session(session_id).turns
        for window in windows:
            self._session(session_id).heard_at_s = self._clock()
            try:
                events = listener.hear(window, turns.end_silence_ms)
            except Exception as error:
                log.exception("the detector failed in session=%s segment=%s", session_id, turns.segment_id)
                yield from self._give_up(session_id, listener, error)
            else:
                yield from self._tell(session_id, listener, events)
            yield

    def _tell(self, session_id: str, listener: Listener, events: Sequence[Event]) -> Work:
        session = self._session(session_id)
        turns = session.turns
        now_ms = listener.ms(listener.position)
        for event, after in zip_longest(events, events[1:]):
            match event:
                case Onset(at, may_go_on, is_rest):
                    session.is_fin_sent = False
                    verbs = list(turns.begin(now_ms, may_reopen=may_go_on, is_rest=is_rest))
                    if turns.continues is not None:
                        listener.go_on()
                    yield from _controls(session_id, verbs, now_ms, listener.ms(at))
                case Speech(begin, end):
                    for at in range(begin, end, WINDOW_SAMPLES):
                        samples = listener.samples(at, min(at + WINDOW_SAMPLES, end))
                        yield from _speech(session_id, turns, listener.ms(at), samples)
                    yield from _controls(session_id, turns.spoke(listener.speech_ms), listener.ms(end))
                case SoftEnd(at):
                    session.is_fin_sent = True
                    is_sure = isinstance(after, HardEnd)
                    yield from _speech(session_id, turns, listener.ms(at), fin=True, speculative=not is_sure)
                    if self._judge and not is_sure and turns.segment_id is not None:
                        _judge_sound(self._judge, session_id, turns, listener.judged())
                case Resumed(at):
                    session.is_fin_sent = False
                    yield from _controls(session_id, turns.go_on(), now_ms, listener.ms(at))
                case HardEnd(at):
                    if not session.is_fin_sent:
                        yield from _speech(session_id, turns, listener.ms(at), fin=True, speculative=False)
                    yield from _controls(session_id, turns.end(listener.ms(at)), listener.ms(at))
                case FalseAlarm(at):
                    yield from _controls(session_id, turns.never_mind(), listener.ms(at))

    def _read(self, hypothesis: Text) -> Work:
        session_id, segment_id = hypothesis.segment
        session, listener = self._session(session_id), self._listeners.get(session_id)
        if hypothesis.fin:
            told = list(session.turns.told(segment_id))
            yield from _controls(session_id, told, listener.ms(listener.position) if listener else 0)
        if listener is None or segment_id != session.turns.segment_id or hypothesis.error is not None:
            return
        # A guess may be anything, above all the first ones: what two of them agree on counts.
        text = hypothesis.text if hypothesis.fin else hypothesis.text[: hypothesis.text_end or 0]
        verbs = list(
            session.turns.read(
                text,
                is_final=hypothesis.fin,
                backchannels=self._backchannels or backchannels(hypothesis.language),
                just_said=session.replies.just_said(session.turns.held),
            )
        )
        # Before anything is sent: sound may be heard between two messages.
        if session.turns.segment_id is None:
            listener.forget()
        yield from _controls(session_id, verbs, listener.ms(listener.position))

    def _give_up(self, session_id: str, listener: Listener, error: Exception) -> Work:
        """The open segment, if there is one, did happen, but can't be served."""
        session = self._session(session_id)
        if session.turns.segment_id is None:
            return
        at_ms = listener.ms(listener.position)
        if not session.is_fin_sent:
            why = f"{type(error).__name__}: {error}"
            yield from _speech(session_id, session.turns, at_ms, fin=True, speculative=False, error=why)
        yield from _controls(session_id, session.turns.end(at_ms), at_ms)

    def _session(self, session_id: str) -> Session:
        if session_id not in self._sessions:
            self._make_room()
            segments = Segments(self._first_id)
            self._sessions[session_id] = Session(segments, TurnTaking(self._rules, segments))
        self._sessions.move_to_end(session_id)
        return self._sessions[session_id]

    def _make_room(self) -> None:
        """For one more session: of those too many, the one that nobody listens to nor speaks of for longest goes."""
        if len(self._sessions) >= MOST_NUMBERED_SESSIONS:
            idle = next((session_id for session_id in self._sessions if session_id not in self._listeners), None)
            if idle is not None:
                del self._sessions[idle]


def _judge_sound(judge: Judge, session_id: str, turns: TurnTaking, sound: Samples) -> None:
    """Of the open segment, which is on its way already: nobody waits for this."""
    try:
        turns.sounds(judge(sound))
    except Exception:
        log.exception("session=%s segment=%s: its sound can't be judged", session_id, turns.segment_id)


def _controls(session_id: str, verbs: Iterable[Verb], audio_ms: int, begin_ms: int | None = None) -> Work:
    """begin_ms: of the segment that starts."""
    for name, segment_id, continues in verbs:
        yield Control(
            port="control",
            verb=name,
            session_id=session_id,
            segment_id=segment_id,
            continues=continues,
            flush=name == "flush",
            audio_ms=begin_ms if name == "start" else audio_ms,
        )


def _speech(
    session_id: str,
    turns: TurnTaking,
    audio_ms: int,
    samples: Samples = EMPTY,
    *,
    fin: bool = False,
    speculative: bool = True,
    error: str | None = None,
) -> Work:
    """Of the open segment, unless it has turned out to be nothing meanwhile."""
    if turns.segment_id is not None:
        yield Audio(
            port="speech",
            session_id=session_id,
            segment_id=turns.segment_id,
            samples=samples,
            sample_rate=SOURCE_RATE_HZ,
            audio_ms=audio_ms,
            continues=turns.continues,
            speculative=speculative,
            fin=fin,
            error=error,
        )
