"""Whose turn it is in one session: when the user begins, goes on, interrupts, only hums, and has finished. Pure.

What happens comes in, verbs about segments come out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dora_voice_vad.meaning import is_backchannel, is_echo
from dora_voice_vad.patience import Patience
from dora_voice_vad.segments import Segments

LONGEST_UNTOLD_MS = 20_000
"""Longer nobody waits for a recogniser to say what the first part of a long utterance said."""
REPORTED_EVERY_MS = 100
"""What was heard since the last report isn't known yet."""


class Verb(NamedTuple):
    """A control message, but for the session and the time."""

    name: str
    segment_id: int
    continues: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Times are in milliseconds of audio."""

    patience: Patience
    min_speech_ms: int
    barge_in_ms: int
    """So much speech interrupts, whatever is said."""
    verdict_ms: int
    """Silence after which an utterance interrupts, because nobody says what it means."""
    reopen_ms: int
    reopen_heard_ms: int
    knows_text: bool
    """Somebody tells what is said."""


@dataclass(slots=True)
class _Open:
    """The segment that the user is saying."""

    segment_id: int
    continues: int | None = None
    held: tuple[int, ...] = ()
    """Replies that are paused until it is clear what this is."""
    reopens: int | None = None
    """The turn that goes on, if this is speech."""
    text: str | None = None
    """What it says, once it has ended softly."""
    sounds_finished: float | None = None
    """How probably, judged by its sound at the soft end."""


class TurnTaking:
    def __init__(self, rules: Rules, segments: Segments) -> None:
        self._rules = rules
        self._segments = segments
        self._open: _Open | None = None
        self._ended: tuple[int, int] | None = None
        """The segment that ended last, and when in ms."""
        self._untold: dict[int, int] = {}
        """Parts of an utterance that was split whose text isn't known, and when in ms they ended: a flush loses it."""
        self._told: int | None = None
        """The segment whose text was told last."""
        self._owed: int | None = None
        """The segment that flushes as soon as it is known."""

    @property
    def segment_id(self) -> int | None:
        """The open segment."""
        return self._open.segment_id if self._open else None

    @property
    def owes_flush(self) -> bool:
        """Whether one waits for what an older part of the utterance says."""
        return self._owed is not None

    @property
    def continues(self) -> int | None:
        """The segment that the open one goes on with."""
        return self._open.continues if self._open else None

    @property
    def held(self) -> tuple[int, ...]:
        """The replies that wait for what the open segment turns out to be."""
        return self._open.held if self._open else ()

    @property
    def end_silence_ms(self) -> int:
        """The silence that ends the open segment."""
        now = self._open
        patience = self._rules.patience
        wait_ms = patience.silence_ms(now.text, now.sounds_finished) if now else patience.silence_ms(None, None)
        is_undecided = now is not None and now.held and now.reopens is None and now.text is None
        return max(wait_ms, self._rules.verdict_ms) if is_undecided and self._rules.knows_text else wait_ms

    def begin(self, at_ms: int, *, may_reopen: bool, is_rest: bool = False) -> Iterator[Verb]:
        """The user makes a sound. What is being said to them holds at once.

        may_reopen: it may go on with what the user said last. is_rest: it does, and that was split off.
        """
        self._untold = {part: ms for part, ms in self._untold.items() if at_ms - ms <= LONGEST_UNTOLD_MS}
        yield from self._flush_owed()
        if is_rest and self._ended and self._rules.knows_text and self._ended[0] != self._told:
            self._untold[self._ended[0]] = at_ms
        reopens = self._reopened(at_ms) if may_reopen else None
        held = self._segments.alive
        self._open = _Open(self._segments.mint(), reopens, held, reopens)
        yield Verb("start", self._open.segment_id, reopens)
        yield from (Verb("pause", segment_id) for segment_id in held)

    def spoke(self, speech_ms: int) -> Iterator[Verb]:
        """The open segment holds so much speech by now."""
        if (now := self._open) and now.held:
            enough_ms = self._rules.barge_in_ms if now.reopens is None else self._rules.min_speech_ms
            if speech_ms >= enough_ms:
                yield from self._interrupt(now)

    def go_on(self) -> Iterator[Verb]:
        """The user goes on after the soft end: that segment never happened, the next says all of it."""
        if before := self._open:
            self._open = _Open(self._segments.mint(), before.segment_id, before.held, before.reopens)
            yield Verb("drop", before.segment_id)
            yield Verb("start", self._open.segment_id, before.segment_id)

    def read(self, text: str, *, is_final: bool, backchannels: str, just_said: str) -> Iterator[Verb]:
        """What the open segment says, as far as it is known. Afterwards there may be no open segment any more."""
        if (now := self._open) is None:
            return
        if is_final:
            now.text = text
        if not now.held or now.reopens is not None:
            return
        if not is_backchannel(text, backchannels) and not is_echo(text, just_said, is_final=is_final):
            yield from self._interrupt(now)
        elif is_final:
            yield from self.never_mind()

    def told(self, segment_id: int) -> Iterator[Verb]:
        """What this segment says is known, or never will be."""
        self._told = segment_id
        self._untold.pop(segment_id, None)
        yield from self._flush_owed()

    def lose_text(self) -> None:
        """Nobody tells any more what was said until now."""
        self._untold.clear()

    def sounds(self, finished_probability: float) -> None:
        """Judged by its sound, the open segment is a whole turn with this probability."""
        if now := self._open:
            now.sounds_finished = finished_probability

    def end(self, at_ms: int) -> Iterator[Verb]:
        """The user has finished. What is still undecided was meant."""
        if now := self._open:
            yield from self._interrupt(now)
            self._open, self._ended = None, (now.segment_id, at_ms)
            self._segments.committed(now.segment_id)
            yield Verb("commit", now.segment_id)

    def never_mind(self) -> Iterator[Verb]:
        """It was nothing: what was being said goes on."""
        if now := self._open:
            self._open = None
            yield Verb("drop", now.segment_id)
            yield from (Verb("resume", segment_id) for segment_id in now.held)

    def give_up(self) -> None:
        """The open segment can't be served."""
        self._open = None

    def _interrupt(self, now: _Open) -> Iterator[Verb]:
        reopens, now.reopens, now.held = now.reopens, None, ()
        if reopens is not None:
            self._segments.drop(reopens)
            yield Verb("drop", reopens)
        self._owed = now.segment_id
        yield from self._flush_owed()

    def _flush_owed(self) -> Iterator[Verb]:
        """All of it, or what is older than the first part whose text isn't known."""
        if self._owed is None:
            return
        # Where a reply is heard, the text of its part was there, and that of an older one was, or never will be.
        heard = max((each for each in self._segments.alive if self._segments.heard_samples(each)), default=0)
        self._untold = {part: ms for part, ms in self._untold.items() if part > heard}
        until = min([self._owed, *self._untold])
        self._owed = self._owed if self._untold else None
        if self._segments.flush(until, is_partial=self._owed is not None):
            yield Verb("flush", until)

    def _reopened(self, at_ms: int) -> int | None:
        """The turn that goes on if the user speaks now: it ended just now, and its reply has hardly begun."""
        if self._ended is None:
            return None
        segment_id, ended_ms = self._ended
        heard_ms = self._segments.heard_samples(segment_id) // 24
        heard_ms += REPORTED_EVERY_MS if heard_ms else 0
        is_recent = at_ms - ended_ms <= self._rules.reopen_ms
        is_last = self._segments.alive[-1:] == (segment_id,)
        return segment_id if is_recent and is_last and heard_ms <= self._rules.reopen_heard_ms else None
