"""The segments of one session: their numbers, and whether one before the newest still lives."""

from __future__ import annotations


class Segments:
    """Ids grow, from `first_id` on and above every id that was seen.

    Replies are played in order, so one number says which are over: all up to it.
    """

    def __init__(self, first_id: int) -> None:
        self._next = first_id
        self._newest_alive = 0
        self._over_until = 0

    def mint(self) -> int:
        self._next += 1
        return self._next - 1

    def committed(self, segment_id: int) -> None:
        self._newest_alive = max(self._newest_alive, segment_id)

    def played(self, segment_id: int, *, is_over: bool) -> None:
        """Something of this segment's reply was heard; with `is_over` nothing more of it will be."""
        self._next = max(self._next, segment_id + 1)
        self._newest_alive = max(self._newest_alive, segment_id)
        if is_over:
            self._over_until = max(self._over_until, segment_id)

    def all_over(self) -> None:
        """Nothing more of any reply will be heard."""
        self._over_until = max(self._over_until, self._newest_alive)

    def flush(self, segment_id: int) -> bool:
        """Everything older is over from now on. Returns whether anything of it was alive."""
        is_any_alive = self._over_until < min(self._newest_alive, segment_id - 1)
        self._over_until = max(self._over_until, segment_id - 1)
        return is_any_alive
