"""Which segments are alive: the one staleness rule.

Per session a floor, the highest id that a flush named, and a set of dropped ids. A segment is dead
below the floor and when dropped. The order of arrival doesn't matter, saying a thing twice changes
nothing, and memory is bounded: sessions not heard of for longest are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict

from dora_voice.messages import Segment

MOST_SESSIONS = 1024
MOST_DROPPED = 1024


class Gate:
    def __init__(self) -> None:
        self._floors: OrderedDict[str, int] = OrderedDict()
        self._dropped: dict[str, OrderedDict[int, None]] = {}

    def flush(self, segment: Segment) -> bool:
        """Every older segment of the session dies. Returns whether that was news."""
        if segment.segment_id <= self._floor(segment.session_id):
            return False
        self._floors[segment.session_id] = segment.segment_id
        return True

    def drop(self, segment: Segment) -> bool:
        """Exactly this segment dies, and never happened. Returns whether that was news."""
        if self.is_dropped(segment):
            return False
        dropped = self._dropped[segment.session_id]
        dropped[segment.segment_id] = None
        if len(dropped) > MOST_DROPPED:
            dropped.popitem(last=False)
        return True

    def is_dead(self, segment: Segment) -> bool:
        floor = self._floor(segment.session_id)
        return segment.segment_id < floor or segment.segment_id in self._dropped[segment.session_id]

    def is_dropped(self, segment: Segment) -> bool:
        """Whether the segment never happened. One that was only flushed did."""
        return self.is_dead(segment) and segment.segment_id in self._dropped[segment.session_id]

    def end(self, session_id: str) -> None:
        """Forgets the session; its ids may start anew."""
        self._floors.pop(session_id, None)
        self._dropped.pop(session_id, None)

    def _floor(self, session_id: str) -> int:
        floor = self._floors.setdefault(session_id, 0)
        self._floors.move_to_end(session_id)
        self._dropped.setdefault(session_id, OrderedDict())
        while len(self._floors) > MOST_SESSIONS:
            forgotten, _ = self._floors.popitem(last=False)
            del self._dropped[forgotten]
        return floor
