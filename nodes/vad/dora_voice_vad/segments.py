"""The segments of one session: their numbers, and which replies may still be heard."""

from __future__ import annotations

from dora_voice.header import LARGEST_READ

MOST_ALIVE = 64


class Segments:
    """Ids grow, from `first_id` on and above every id that was seen.

    Replies are played in order, so one number says which are over: all up to it.
    """

    def __init__(self, first_id: int) -> None:
        self._next = first_id
        self._heard: dict[int, int] = {}
        """Segments that are alive, and the samples of their replies that were heard."""
        self._over_until = 0
        self._has_lost_track = first_id > 1
        """There may be older segments, further down, that nobody will report about."""

    @property
    def alive(self) -> tuple[int, ...]:
        """Committed, and neither played to the end nor flushed nor dropped."""
        return tuple(sorted(self._heard))

    def heard_samples(self, segment_id: int) -> int:
        """Of its reply, at 24 kHz, as far as was reported."""
        return self._heard.get(segment_id, 0)

    def mint(self) -> int:
        self._next += 1
        return self._next - 1

    def saw(self, segment_id: int) -> None:
        """Somebody else speaks of this segment."""
        if segment_id < LARGEST_READ // 2:
            self._next = max(self._next, segment_id + 1)

    def committed(self, segment_id: int) -> None:
        self._live(segment_id, 0)

    def played(self, segment_id: int, samples: int, *, is_over: bool) -> None:
        """So much of this segment's reply was heard; with `is_over` nothing more of it will be."""
        self._live(segment_id, samples)
        if is_over:
            self._over(segment_id)

    def all_over(self) -> None:
        """Nothing more of any reply will be heard."""
        self._over(max(self._heard, default=0))
        self._has_lost_track = True

    def flush(self, segment_id: int, *, is_partial: bool = False) -> bool:
        """Everything older is over from now on. Returns whether anything of it was alive, or may have been.

        is_partial: another flush will follow, for what nobody reports about, too.
        """
        is_any_alive = self._has_lost_track or any(older < segment_id for older in self._heard)
        self._over(segment_id - 1)
        self._has_lost_track &= is_partial
        return is_any_alive

    def drop(self, segment_id: int) -> None:
        """It never happened."""
        self._heard.pop(segment_id, None)

    def _live(self, segment_id: int, samples: int) -> None:
        if segment_id > self._over_until:
            self._heard[segment_id] = max(samples, self._heard.get(segment_id, 0))
            if len(self._heard) > MOST_ALIVE:
                del self._heard[min(self._heard)]

    def _over(self, until: int) -> None:
        self._over_until = max(self._over_until, until)
        self._heard = {alive: samples for alive, samples in self._heard.items() if alive > self._over_until}
