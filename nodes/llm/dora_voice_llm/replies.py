"""Which replies of one session are still being heard, and what of them was. Pure bookkeeping."""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Reply:
    """What was answered in one segment. Positions are code points."""

    segment_id: int
    turn_id: int
    is_spoken: bool
    """Somebody reports what is played; else all that was sent counts as heard."""
    text: str = ""
    """All that was sent so far."""
    heard_end: int = 0
    is_sent: bool = False
    """All of the reply was sent."""
    is_cut: bool = False
    """The reply was flushed: nothing more is sent, the last report of what was heard may still come."""
    is_over: bool = False
    """Nothing more of it is played."""

    @property
    def heard_by_now(self) -> int:
        """Up to where it was heard so far, as far as anybody can tell."""
        return self.heard_end if self.is_spoken else len(self.text)


class Replies:
    """Those that are not past, in the order of their segments.

    on_past: told of a reply, with `heard_end`, when what was heard of it is known for good.
    """

    def __init__(self, on_past: Callable[[Reply], None]) -> None:
        self._on_past = on_past
        self._open: list[Reply] = []

    def __iter__(self) -> Iterator[Reply]:
        return iter(self._open)

    def begin(self, reply: Reply) -> None:
        insort(self._open, reply, key=lambda reply: reply.segment_id)

    def before(self, segment_id: int) -> list[Reply]:
        return [reply for reply in self._open if reply.segment_id < segment_id]

    def is_playing(self, before_id: int) -> bool:
        """Whether an older reply is heard, or made, and nobody cut it."""
        return any(not reply.is_cut for reply in self.before(before_id))

    def sent(self, reply: Reply) -> None:
        """All of it was sent."""
        reply.is_sent = True
        if not reply.is_spoken or not reply.text.strip():
            reply.heard_end = len(reply.text)
            self.settle(reply)
        elif reply.is_over:
            self.settle(reply)

    def fail(self, segment_id: int) -> None:
        """Nothing more is made in this segment; what was sent is still played."""
        for reply in [reply for reply in self._open if reply.segment_id == segment_id]:
            self.sent(reply)

    def played(self, segment_id: int, text_end: int | None, samples: int, *, is_last: bool) -> Reply | None:
        """A report of the speaker. Without a position in the text, any sound at all means that all was heard.

        Returns the reply if it was heard further than before, and goes on.
        """
        reply = self._find(segment_id)
        if reply is None or reply.is_over:
            return None
        position = text_end if text_end is not None else len(reply.text) if samples else 0
        before, reply.heard_end = reply.heard_end, max(reply.heard_end, min(position, len(reply.text)))
        if is_last:
            reply.is_over = True
            if reply.is_sent or reply.is_cut:
                self.settle(reply)
        return reply if reply.heard_end > before and not is_last else None

    def flush(self, before_id: int) -> None:
        """Every older reply is cut. What was heard of it may still be reported."""
        for reply in self.before(before_id):
            reply.is_cut, reply.heard_end = True, reply.heard_by_now
            if not reply.is_spoken or reply.is_over:
                self.settle(reply)

    def drop(self, segment_id: int) -> None:
        self._open = [reply for reply in self._open if reply.segment_id != segment_id]

    def clear(self) -> None:
        self._open.clear()

    def keep(self, is_kept: Callable[[Reply], bool]) -> None:
        """The others never were."""
        self._open = [reply for reply in self._open if is_kept(reply)]

    def lose(self, *, for_good: bool) -> None:
        """The speaker crashed: what it was playing is cut where it was last heard of.

        What is still being made may be played by the next speaker; if there is none, nobody reports it.
        """
        for reply in list(self._open):
            if reply.is_sent:
                self.settle(reply)
            elif for_good:
                reply.is_spoken = False

    def settle(self, reply: Reply) -> None:
        """What was heard of it is known and stays. A rest without a letter or digit has no sound, so it was heard."""
        if reply in self._open:
            self._open.remove(reply)
            if not re.search(r"\w", reply.text[reply.heard_end :]):
                reply.heard_end = len(reply.text)
            self._on_past(reply)

    def _find(self, segment_id: int) -> Reply | None:
        return next((reply for reply in self._open if reply.segment_id == segment_id), None)
