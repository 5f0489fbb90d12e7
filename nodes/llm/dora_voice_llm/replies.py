"""What was said in one session: the user's words, and of each reply what was heard. Pure bookkeeping."""

from __future__ import annotations

import re
from bisect import insort
from dataclasses import dataclass, field

from dora_voice.heard import heard_of

MOST_TURNS = 1024
"""More than fit into any usual context; the oldest go."""


@dataclass(slots=True)
class Turn:
    """One segment: what the user said and what was answered. Positions are code points of the reply."""

    segment_id: int
    user: str
    reply: str = ""
    """All that was sent so far."""
    heard_end: int = 0
    is_sent: bool = False
    """All of the reply was sent."""
    is_cut: bool = False
    """The reply was flushed: nothing more is sent, the last report of what was heard may still come."""
    is_past: bool = False
    """What was heard is known and stays."""

    @property
    def is_playing(self) -> bool:
        return not (self.is_cut or self.is_past)

    @property
    def heard(self) -> str:
        """The part of the reply that was heard, in whole words."""
        return heard_of(self.reply, self.heard_end)

    def settle(self) -> None:
        """Nothing changes any more. A rest without a letter or digit has no sound, so it counts as heard."""
        self.is_past = True
        if not re.search(r"\w", self.reply[self.heard_end :]):
            self.heard_end = len(self.reply)


@dataclass(slots=True)
class History:
    """The turns of one session in the order of their segments.

    knows_heard: someone reports what is played; otherwise all that was sent counts as heard.
    """

    knows_heard: bool
    turns: list[Turn] = field(default_factory=list)

    def add(self, segment_id: int, user: str) -> Turn:
        turn = Turn(segment_id, user)
        insort(self.turns, turn, key=lambda turn: turn.segment_id)
        del self.turns[:-MOST_TURNS]
        return turn

    def add_past(self, segment_id: int, user: str) -> None:
        """A turn that was flushed before there was a reply."""
        if self._find(segment_id) is None:
            self.add(segment_id, user).settle()

    def lose(self, *, for_good: bool) -> None:
        """The speaker crashed: what it was playing is cut where it was last heard of."""
        self.knows_heard &= not for_good
        for turn in self.turns:
            if turn.is_sent and not turn.is_past:
                turn.settle()

    def before(self, turn: Turn) -> list[Turn]:
        return [older for older in self.turns if older.segment_id < turn.segment_id]

    def sent(self, turn: Turn) -> None:
        """All of the reply was sent."""
        turn.is_sent = True
        if not self.knows_heard or not turn.reply.strip():
            turn.heard_end = len(turn.reply)
            turn.settle()

    def played(self, segment_id: int, text_end: int | None, samples: int, *, is_last: bool) -> None:
        """A report of the speaker. Without a position in the text, any sound at all means that all was heard."""
        turn = self._find(segment_id)
        if turn is None or turn.is_past:
            return
        position = text_end if text_end is not None else len(turn.reply) if samples else 0
        turn.heard_end = max(turn.heard_end, min(position, len(turn.reply)))
        if is_last:
            turn.settle()

    def flush(self, before_id: int) -> None:
        for turn in self.turns:
            if turn.segment_id < before_id:
                self._cut(turn)

    def fail(self, segment_id: int) -> None:
        """Nothing more of the reply is made; what was sent of it is still played."""
        if turn := self._find(segment_id):
            self.sent(turn)

    def drop(self, segment_id: int) -> None:
        self.turns = [turn for turn in self.turns if turn.segment_id != segment_id]

    def forget_oldest(self) -> None:
        del self.turns[0]

    def messages(self, turn: Turn) -> list[dict[str, str]]:
        """The conversation up to what the user says in `turn`, as role and content.

        Roles alternate, as most templates demand: what the user said after a reply of which nothing was
        heard goes on in the same message.
        """
        messages: list[dict[str, str]] = []
        for each in [*self.before(turn), turn]:
            if messages and messages[-1]["role"] == "user":
                messages[-1]["content"] += f" {each.user}"
            else:
                messages.append({"role": "user", "content": each.user})
            if each is not turn and each.heard.strip():
                messages.append({"role": "assistant", "content": each.heard})
        return messages

    def _find(self, segment_id: int) -> Turn | None:
        return next((turn for turn in self.turns if turn.segment_id == segment_id), None)

    def _cut(self, turn: Turn) -> None:
        if turn.is_past:
            return
        turn.is_cut = True
        if not self.knows_heard:
            turn.heard_end = len(turn.reply)
        if not self.knows_heard or not turn.reply:
            turn.settle()
