"""The sending side of a node: stamps what the stage made, and lets out only what is alive and not over."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dora_voice import arrow
from dora_voice.intake import Notice
from dora_voice.messages import DEFAULT_SESSION, Audio, Control, Message, Played, Segment, Text
from dora_voice.stage import Ports

log = logging.getLogger("dora_voice.stage")

MOST_REMEMBERED = 4096


@dataclass(slots=True)
class Progress:
    """The times of one segment, in seconds of the node's clock."""

    arrived_s: float
    began_s: float
    first_output_s: float | None = None


class Outgoing:
    def __init__(
        self,
        ports: Ports,
        is_dead: Callable[[Segment], bool],
        clock: Callable[[], float],
        send: Callable[[Message], None],
    ) -> None:
        self.stale = 0
        """Messages that were not sent, because their segment had died or was over."""
        self._ports = ports
        self._is_dead = is_dead
        self._clock = clock
        self._send = send
        self._fragmented = [port for port, kind in ports.outputs.items() if kind in (Audio, Text)]
        self._seqs: OrderedDict[tuple[Segment, str], int] = OrderedDict()
        self._over: OrderedDict[tuple[Segment, str], None] = OrderedDict()
        self._committed: OrderedDict[Segment, None] = OrderedDict()
        self._progress: OrderedDict[Segment, Progress] = OrderedDict()

    def began(self, segment: Segment, arrived_s: float) -> None:
        """The stage works on this segment, which arrived at this time of the clock."""
        if segment not in self._progress:
            self._remember(self._progress, segment, Progress(arrived_s, self._clock()))

    def commit(self, segment: Segment) -> None:
        self._remember(self._committed, segment, None)

    def is_committed(self, segment: Segment) -> bool:
        return segment in self._committed

    def is_over(self, segment: Segment) -> bool:
        """Whether the segment has got its fin on the reply output."""
        return (segment, self._ports.reply or "") in self._over

    def send(self, made: Message, running: Message | None = None) -> None:
        """Sends what was made while `running` was processed. What a `run` makes may belong to no segment."""
        if running is not None:
            made = replace(
                made,
                session_id=made.session_id or running.session_id,
                segment_id=running.segment_id if made.segment_id is None else made.segment_id,
                speculative=made.speculative or running.speculative,
            )
        if made.segment_id is None:
            stream = Segment(made.session_id or DEFAULT_SESSION, 0)
            self._send_numbered(made, (stream, made.port))
        elif isinstance(made, Control):
            self._send(made)
        else:
            self._send_fragment(made)

    def end_with_error(self, segment: Segment, error: str, *, speculative: bool) -> None:
        """Ends the segment on every output on which it is not over."""
        for port in self._fragmented:
            fin = self._empty(port, session_id=segment.session_id, segment_id=segment.segment_id, fin=True)
            self._send_fragment(replace(fin, error=error, speculative=speculative))

    def finish(self, session_id: str) -> None:
        """The session's last message, on every output but control."""
        for port, kind in self._ports.outputs.items():
            if kind is not Control:
                self._send(self._empty(port, session_id=session_id, finish=True))

    def forget(self, session_id: str) -> None:
        """The session is over; its ids may start anew."""
        _delete(self._seqs, (key for key in self._seqs if key[0].session_id == session_id))
        _delete(self._over, (key for key in self._over if key[0].session_id == session_id))
        _delete(self._committed, (segment for segment in self._committed if segment.session_id == session_id))
        _delete(self._progress, (segment for segment in self._progress if segment.session_id == session_id))

    def died(self, notice: Notice) -> None:
        """Segments that get no fin are not measured."""
        _delete(self._progress, filter(notice.concerns, self._progress))

    def _send_fragment(self, made: Message) -> None:
        key = (made.segment, made.port)
        if not isinstance(made, Played) and (self._is_dead(made.segment) or key in self._over):
            self.stale += 1
            return
        is_speculative = made.speculative and made.segment not in self._committed
        self._send_numbered(replace(made, speculative=is_speculative), key)
        if made.fin:
            self._remember(self._over, key, None)
        if made.port == self._ports.reply:
            self._measure(made)

    def _empty(self, port: str, **keys: Any) -> Message:
        return arrow.empty(port, self._ports.outputs[port], self._ports.rate_hz, **keys)

    def _send_numbered(self, made: Message, stream: tuple[Segment, str]) -> None:
        seq = self._seqs.get(stream, -1) + 1
        self._send(replace(made, seq=seq))
        # What could not be written has used no number.
        self._seqs.pop(stream, None)
        self._remember(self._seqs, stream, seq)

    def _measure(self, made: Message) -> None:
        if not (progress := self._progress.get(made.segment)):
            return
        progress.first_output_s = progress.first_output_s or self._clock()
        if made.fin:
            del self._progress[made.segment]
            log.debug(
                "segment session=%s segment=%d queue_ms=%.1f first_output_ms=%.1f total_ms=%.1f error=%s",
                *made.segment,
                (progress.began_s - progress.arrived_s) * 1000,
                (progress.first_output_s - progress.arrived_s) * 1000,
                (self._clock() - progress.arrived_s) * 1000,
                made.error,
            )

    @staticmethod
    def _remember(remembered: OrderedDict[Any, Any], key: Any, value: Any) -> None:
        remembered[key] = value
        if len(remembered) > MOST_REMEMBERED:
            remembered.popitem(last=False)


def _delete(remembered: OrderedDict[Any, Any], keys: Iterable[Any]) -> None:
    for key in list(keys):
        del remembered[key]
