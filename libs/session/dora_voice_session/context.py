"""What of a history fits into a model's context. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from dora_voice_session.refused import RefusedError
from dora_voice_session.turns import Turn, Turns


@dataclass(frozen=True, slots=True)
class Room:
    context_tokens: int
    reply_tokens: int
    """At the most."""

    @property
    def tokens(self) -> int:
        """What is left for all that comes before the reply."""
        return self.context_tokens - self.reply_tokens


def fit(turns: Turns, newest: Turn | None, room: Room, count: Callable[[Turns], int]) -> Turns:
    """The turns that fit: all, or else so few that the context is half full, but `newest` in any case.

    Half full, because all that follows what was given up is computed again: that should happen rarely. `count` tells
    how many tokens some turns take. Raises RefusedError if even the newest takes too many.
    """
    if count(turns) <= room.tokens:
        return turns
    alone = count(Turns([newest] if newest else []))
    if newest is None or alone > room.tokens:
        raise RefusedError(
            "context_full",
            f"a message of {alone} tokens doesn't fit: a context of {room.context_tokens} tokens without "
            f"max_new_tokens={room.reply_tokens} leaves {room.tokens}",
        )
    older = range(turns.before(newest))
    given_up = bisect_left(older, True, lo=min(1, len(older)), key=lambda n: _is_half(turns, n, room, count))
    return turns.without_oldest(given_up)


def _is_half(turns: Turns, given_up: int, room: Room, count: Callable[[Turns], int]) -> bool:
    return 2 * count(turns.without_oldest(given_up)) <= room.tokens
