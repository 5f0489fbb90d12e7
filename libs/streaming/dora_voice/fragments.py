"""Which segments are open on each input, and which of their fragments were lost or come too late."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Collection

from dora_voice.messages import Message, Segment
from dora_voice.stage import Ports

log = logging.getLogger("dora_voice.intake")

MOST_REMEMBERED = 4096

Stream = tuple[Segment, str]


class Fragments:
    """`counts` gets what is missing and what is late."""

    def __init__(self, ports: Ports, counts: Counter[str]) -> None:
        self._ports = ports
        self._counts = counts
        self._open: OrderedDict[Stream, int] = OrderedDict()
        """The seq that is expected next."""
        self._ended: OrderedDict[Stream, int] = OrderedDict()

    def admit(self, message: Message) -> bool:
        """Whether this fragment goes on where its stream was; one that comes a second time or late doesn't."""
        stream = (message.segment, message.port)
        expected = self._open.get(stream, 0)
        seq = expected if message.seq is None else message.seq
        if self._is_ordered(message.port) and (seq < expected or stream in self._ended):
            self._counts["late"] += 1
            return False
        if message.port not in self._ports.unordered and seq > expected:
            self._counts["missing"] += seq - expected
            log.warning(
                "input %r: session=%s segment=%d: seq %d to %d never came",
                *(message.port, *message.segment, expected, seq - 1),
            )
        self._open.pop(stream, None)
        remembered = self._ended if message.fin else self._open
        remembered[stream] = max(expected, seq + 1)
        if len(remembered) > MOST_REMEMBERED:
            remembered.popitem(last=False)
        return True

    def open_on(self, port: str) -> list[Segment]:
        """Segments of which a fragment came on this input, but no fin."""
        return [segment for segment, open_port in self._open if open_port == port]

    def has_ended(self, segment: Segment, port: str) -> bool:
        return (segment, port) in self._ended

    def is_known(self, segment: Segment, port: str) -> bool:
        return (segment, port) in self._open or (segment, port) in self._ended

    def forget(self, session_id: str, ports: Collection[str]) -> None:
        """The session is over on these inputs; its ids may start anew."""
        for streams in (self._open, self._ended):
            for stream in [stream for stream in streams if stream[0].session_id == session_id and stream[1] in ports]:
                del streams[stream]

    def _is_ordered(self, port: str) -> bool:
        return port not in self._ports.unordered | self._ports.continuous
