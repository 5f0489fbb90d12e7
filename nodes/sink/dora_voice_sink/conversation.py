"""What was said, heard and lost: fragments put together to turns, as events. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dora_voice import arrow
from dora_voice.heard import heard_of
from dora_voice.messages import SPEAKER_RATE_HZ, Audio, Control, Message, Played, Segment, Text
from dora_voice.reassembly import Gap, Piece, Reassembly, Released, Stream, Whole

OUTPUTS = {
    "user_text": "stt.text",
    "hypothesis": "stt.hypothesis",
    "reply_text": "llm.text",
    "reply_audio": "tts.audio",
    "played": "speaker.played",
    "control": "vad.control",
}
"""Our input → the output that it is wired to, as it is named in the events."""

MOST_SEGMENTS = 4096
MOST_NUMBERS = 1000
MOST_ERRORS = 100
LONGEST_ERROR = 1000
LONGEST_TEXT = 100_000
"""Characters of a turn: two hours of speech."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of conversation.jsonl."""

    segment: Segment
    event: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplySound:
    """The next samples of a segment's synthesised reply; `fin` when there are no more."""

    segment: Segment
    samples: NDArray[np.float32]
    sample_rate: int
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """The listener has heard `text`, the beginning of `reply`; `fin` when it was the last of it."""

    segment: Segment
    text: str
    reply: str
    """As far as it is written."""
    fin: bool
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Wasted:
    """A segment that never happened had been answered already: so many fragments of text, and samples of 24 kHz."""

    segment: Segment
    fragments: int
    samples: int


Outcome = Event | ReplySound | Heard | Wasted


@dataclass(slots=True)
class _Turns:
    """What is known of the two turns of one segment."""

    has_begun: bool = False
    is_committed: bool = False
    user: str = ""
    is_user_complete: bool = False
    is_user_written: bool = False
    user_error: str | None = None
    reply: str = ""
    reply_fragments: int = 0
    audio_samples: int = 0
    is_reply_complete: bool = False
    is_audio_complete: bool = False
    is_reply_written: bool = False
    reply_error: str | None = None
    heard_end: int = 0
    was_played: bool = False
    is_playing_over: bool = False
    is_position_known: bool = False
    """The speaker tells where in the text it is."""
    is_cut: bool = False
    errors: set[str] = field(default_factory=set)
    """Those reported: an error travels on with its segment, and comes in once from each stage."""

    def text(self, port: str) -> str:
        return self.user if port == "user_text" else self.reply

    def awaits(self, port: str) -> bool:
        """Whether there is something that is to come on this input, or its end."""
        if self.is_cut:
            return False
        if port == "user_text":
            return self.has_begun and not self.is_user_complete
        if port == "reply_text":
            return bool(self.user.strip()) and self.is_user_complete and not self.is_reply_complete
        if port == "reply_audio":
            return bool(self.reply) and not self.is_audio_complete
        return port == "played" and self.audio_samples > 0 and not self.is_playing_over


class Conversation:
    """Feed it every message; it tells what to write down, in order.

    `wired` are the sink's connected inputs: where `played` isn't, a reply is over when it is written.
    What is not speculative, or was committed, is real.
    """

    def __init__(self, wired: Iterable[str]) -> None:
        self._wired = frozenset(wired)
        self._reassembly = Reassembly()
        self._turns: OrderedDict[Segment, _Turns] = OrderedDict()

    def take(self, message: Message) -> Iterator[Outcome]:
        segment = message.segment
        if isinstance(message, Control):
            yield from self._take_control(message)
        elif message.port == "hypothesis" and isinstance(message, Text):
            if message.text:
                yield Event(segment, "hypothesis", {"text": message.text})
        elif isinstance(message, Played):
            yield from self._take_played(message)
        else:
            size = arrow.size_bytes(message)
            stream = Stream(segment, message.port)
            yield from self._take_released(
                self._reassembly.add(stream, message, seq=message.seq, fin=message.fin, size_bytes=size)
            )

    def flushed(self, segment: Segment) -> Iterator[Outcome]:
        """Everything older than `segment` was cut, but what the user said stays said."""
        for stream in self._reassembly.streams(segment.session_id):
            if stream.segment.is_older_than(segment) and stream.port != "user_text":
                yield from self._cut(stream)
        for older in [known for known in self._turns if known.is_older_than(segment)]:
            turns = self._turns[older]
            turns.is_cut |= not (turns.is_playing_over and turns.is_reply_complete)
            yield from self._turns_due(older)

    def dropped(self, segment: Segment) -> Iterator[Outcome]:
        """This segment never happened."""
        for stream in self._reassembly.streams(segment.session_id):
            if stream.segment == segment:
                yield from self._cut(stream)
        turns = self._turns.pop(segment, None)
        if turns and (turns.reply_fragments or turns.audio_samples):
            yield Wasted(segment, turns.reply_fragments, turns.audio_samples)

    def lost(self, port: str) -> Iterator[Outcome]:
        """Who feeds this input crashed. What it had begun to send has an end already; the rest does not come."""
        error = f"restarted: node {OUTPUTS[port].split('.')[0]} crashed"
        for segment, turns in list(self._turns.items()):
            if turns.awaits(port):
                yield from self._fail(segment, port, error)
                yield from self._turns_due(segment)

    def finish(self, session_id: str) -> Iterator[Outcome]:
        """Nothing more comes of this session: reports what is missing, and writes the turns that are not."""
        for stream in self._reassembly.streams(session_id):
            yield from self._take_released(self._reassembly.finish(stream))
        yield from self._close(session_id)

    def ended(self, session_id: str) -> Iterator[Outcome]:
        """The session is over now: writes the turns that are not, as far as they came."""
        yield from self._close(session_id)
        self._reassembly.forget(session_id)
        for segment in [segment for segment in self._turns if segment.session_id == session_id]:
            del self._turns[segment]

    def sessions(self) -> list[str]:
        """Sessions with something known of them, in order of appearance."""
        return list(dict.fromkeys([*(segment.session_id for segment in self._turns), *self._reassembly.sessions()]))

    def _take_control(self, message: Control) -> Iterator[Outcome]:
        values = {"audio_ms": message.audio_ms, "continues": message.continues}
        yield Event(message.segment, message.verb, {key: value for key, value in values.items() if value is not None})
        if message.error is not None:
            yield from self._report(message.segment, "control", message.error)
        if message.verb == "start":
            self._of(message.segment).has_begun = True
        elif message.verb == "commit":
            self._of(message.segment).is_committed = True
            yield from self._turns_due(message.segment)
        if message.audio_ms is not None:
            yield from self._take_released(self._reassembly.advance(message.segment.session_id, message.audio_ms))

    def _take_played(self, message: Played) -> Iterator[Outcome]:
        turns = self._of(message.segment)
        turns.was_played = True
        if message.error is not None:
            yield from self._fail(message.segment, message.port, message.error)
            yield from self._turns_due(message.segment)
            return
        turns.heard_end = max(turns.heard_end, message.text_end or 0)
        turns.is_position_known |= message.text_end is not None
        values = {"samples": message.samples, "text_end": message.text_end, "fin": message.fin}
        yield Event(message.segment, "played", {key: value for key, value in values.items() if value is not None})
        if turns.is_playing_over:
            return
        turns.is_playing_over = message.fin
        heard = heard_of(turns.reply, turns.heard_end)
        yield Heard(message.segment, heard, turns.reply, message.fin, turns.is_cut)
        yield from self._turns_due(message.segment)

    def _take_released(self, released: Iterable[Released]) -> Iterator[Outcome]:
        for one in released:
            segment, port = one.stream
            if isinstance(one, Gap):
                yield Event(segment, "gap", {"output": OUTPUTS[port], "missing": _missing(one)})
                if one.last is None:
                    yield from self._cut(one.stream)
            elif isinstance(one, Piece):
                yield from self._take_piece(segment, port, one.item)
            elif isinstance(one, Whole):
                yield from self._take_whole(segment, port)

    def _take_piece(self, segment: Segment, port: str, message: Message) -> Iterator[Outcome]:
        turns = self._of(segment)
        turns.is_committed |= not message.speculative
        if message.error is not None:
            yield from self._report(segment, port, message.error)
        if isinstance(message, Text) and len(turns.text(port)) + len(message.text) > LONGEST_TEXT:
            yield from self._report(segment, port, f"too long: {LONGEST_TEXT} characters of {OUTPUTS[port]} are kept")
        if isinstance(message, Audio):
            if message.samples.size and not turns.audio_samples:
                yield Event(segment, "audio", {"samples": 0})
            turns.audio_samples += round(message.samples.size * SPEAKER_RATE_HZ / message.sample_rate)
            if message.error is not None:
                # It breaks off: what is heard of it is not all.
                turns.is_cut, turns.reply_error = True, turns.reply_error or message.error
            yield ReplySound(segment, message.samples, message.sample_rate)
        elif isinstance(message, Text) and port == "user_text":
            turns.user = (turns.user + message.text)[:LONGEST_TEXT]
            turns.user_error = message.error
            if message.rejected is not None:
                yield Event(segment, "rejected", {"reason": message.rejected})
        elif isinstance(message, Text):
            if message.text:
                turns.reply_fragments += 1
                yield Event(segment, "reply", {"text": message.text})
            turns.reply = (turns.reply + message.text)[:LONGEST_TEXT]
            turns.reply_error = message.error

    def _take_whole(self, segment: Segment, port: str) -> Iterator[Outcome]:
        turns = self._of(segment)
        if port == "reply_audio":
            turns.is_audio_complete = True
            yield Event(segment, "audio", {"samples": turns.audio_samples, "fin": True})
            yield ReplySound(segment, np.zeros(0, np.float32), SPEAKER_RATE_HZ, fin=True)
        turns.is_user_complete |= port == "user_text"
        turns.is_reply_complete |= port == "reply_text"
        yield from self._turns_due(segment)

    def _report(self, segment: Segment, port: str, error: str) -> Iterator[Outcome]:
        error = error[:LONGEST_ERROR]
        errors = self._of(segment).errors
        if error not in errors:
            if len(errors) < MOST_ERRORS:
                errors.add(error)
            yield Event(segment, "error", {"output": OUTPUTS[port], "error": error})

    def _fail(self, segment: Segment, port: str, error: str) -> Iterator[Outcome]:
        """What this segment awaits on this input does not come any more."""
        yield from self._report(segment, port, error)
        turns = self._of(segment)
        if port == "user_text":
            turns.is_user_complete, turns.user_error = True, error
            return
        turns.is_reply_complete |= port == "reply_text"
        turns.is_audio_complete |= port == "reply_audio"
        turns.reply_error = turns.reply_error or error
        # Nothing more of it is heard.
        turns.is_cut, turns.is_playing_over = not turns.is_playing_over, True

    def _turns_due(self, segment: Segment) -> Iterator[Outcome]:
        """A user turn is written when its fin came and it is committed; a reply also has to be played, or cut."""
        turns = self._of(segment)
        if not turns.is_committed:
            return
        if turns.is_user_complete:
            yield from self._write_cut_before(segment)
            yield from self._write_user(segment, turns)
        is_heard = turns.is_playing_over or "played" not in self._wired
        if is_heard and (turns.is_reply_complete or turns.is_cut):
            yield from self._write_reply(segment, turns)

    def _write_cut_before(self, segment: Segment) -> Iterator[Outcome]:
        """Of a reply that was cut before anything of it was played, no last report comes."""
        for older, turns in list(self._turns.items()):
            if older.is_older_than(segment) and turns.is_cut and turns.is_committed and not turns.was_played:
                yield from self._write_reply(older, turns)

    def _close(self, session_id: str) -> Iterator[Outcome]:
        for segment in [segment for segment in self._turns if segment.session_id == session_id]:
            yield from self._close_turns(segment)

    def _close_turns(self, segment: Segment) -> Iterator[Outcome]:
        turns = self._of(segment)
        if turns.is_committed:
            if turns.is_user_complete:
                yield from self._write_user(segment, turns)
            turns.is_cut |= "played" in self._wired and not turns.is_playing_over
            yield from self._write_reply(segment, turns)

    def _write_user(self, segment: Segment, turns: _Turns) -> Iterator[Outcome]:
        if (turns.user.strip() or turns.user_error) and not turns.is_user_written:
            turns.is_user_written = True
            yield _turn(segment, "user", turns.user.strip(), turns.user_error)

    def _write_reply(self, segment: Segment, turns: _Turns) -> Iterator[Outcome]:
        if (turns.reply or turns.reply_error) and not turns.is_reply_written:
            turns.is_reply_written = True
            # The speaker's last report may overtake the flush that it is due to.
            is_cut = turns.is_cut or (turns.is_position_known and turns.heard_end < len(turns.reply))
            heard = heard_of(turns.reply, turns.heard_end) if is_cut else None
            yield _turn(segment, "assistant", turns.reply, turns.reply_error, heard)

    def _cut(self, stream: Stream) -> Iterator[Outcome]:
        self._reassembly.cut(stream)
        if stream.port == "reply_audio":
            yield ReplySound(stream.segment, np.zeros(0, np.float32), SPEAKER_RATE_HZ, fin=True)

    def _of(self, segment: Segment) -> _Turns:
        turns = self._turns.setdefault(segment, _Turns())
        if len(self._turns) > MOST_SEGMENTS:
            self._turns.popitem(last=False)
        return turns


def _turn(segment: Segment, role: str, text: str, error: str | None, heard: str | None = None) -> Event:
    values = {"role": role, "text": text, "heard": heard, "error": error}
    return Event(segment, "turn", {key: value for key, value in values.items() if value is not None})


def _missing(gap: Gap) -> list[int]:
    """The numbers of what never came; for a fin that never came, the number it would have had at least."""
    last = gap.first if gap.last is None else min(gap.last, gap.first + MOST_NUMBERS - 1)
    return list(range(gap.first, last + 1))
