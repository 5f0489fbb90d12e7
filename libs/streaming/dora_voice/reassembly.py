"""Puts fragments together by seq: any order of arrival in, the right order out, what is lost reported.

Pure bookkeeping. A stream is one output's fragments of one segment. Fragments are released as soon as
all before them are there, so that the whole is never held for nothing; what waits behind a gap is
limited in messages, in bytes, and in audio time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dora_voice.messages import Segment


class Stream(NamedTuple):
    """Names the fragments of one segment on one output."""

    segment: Segment
    port: str


@dataclass(frozen=True, slots=True)
class Piece:
    """The next fragment in order."""

    stream: Stream
    item: Any


@dataclass(frozen=True, slots=True)
class Gap:
    """Fragments that never came: seq `first` to `last`; `last` is None when it was the fin that never came."""

    stream: Stream
    first: int
    last: int | None


@dataclass(frozen=True, slots=True)
class Whole:
    """The stream's fin was released: nothing more comes."""

    stream: Stream


Released = Piece | Gap | Whole


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait behind a gap, in all streams together, before the gap is given up."""

    most_messages: int = 10_000
    most_bytes: int = 32 * 2**20
    longest_ms: int = 10_000
    """In audio time (`audio_ms` of the session), never wall clock."""
    most_streams: int = 4096
    most_remembered: int = 4096
    """Streams that are over, kept so that late duplicates are recognised."""


@dataclass(slots=True)
class _Open:
    next_seq: int = 0
    fin_seq: int | None = None
    held: dict[int, tuple[Any, int]] = field(default_factory=dict)
    waits_since_ms: int | None = None

    @property
    def held_bytes(self) -> int:
        return sum(size_bytes for _, size_bytes in self.held.values())


class Reassembly:
    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._open: OrderedDict[Stream, _Open] = OrderedDict()
        self._over: OrderedDict[Stream, None] = OrderedDict()
        self._now_ms: dict[str, int] = {}
        self._held_messages = 0
        self._held_bytes = 0

    def add(self, stream: Stream, item: Any, *, seq: int | None, fin: bool, size_bytes: int = 0) -> list[Released]:
        """One fragment came. Without `seq` it is the next one. Returns what can be released now, in order.

        Duplicates, and what comes after the fin, are ignored.
        """
        if stream in self._over:
            return []
        state = self._open.setdefault(stream, _Open())
        self._open.move_to_end(stream)
        seq = max([state.next_seq, *(held + 1 for held in state.held)]) if seq is None else seq
        is_known = seq < state.next_seq or seq in state.held
        if is_known or (state.fin_seq is not None and seq > state.fin_seq):
            return []
        if fin:
            state.fin_seq = seq
        self._hold(state, seq, item, size_bytes)
        released = self._release(stream, state)
        if state.held and state.waits_since_ms is None:
            state.waits_since_ms = self._now_ms.get(stream.segment.session_id, 0)
        return released + self._enforce_limits()

    def advance(self, session_id: str, audio_ms: int) -> list[Released]:
        """The session's audio has come to `audio_ms`: gaps that have waited too long are given up."""
        self._now_ms[session_id] = max(audio_ms, self._now_ms.pop(session_id, 0))
        if len(self._now_ms) > self._limits.most_streams:
            del self._now_ms[next(iter(self._now_ms))]
        overdue = [
            stream
            for stream, state in self._open.items()
            if stream.segment.session_id == session_id and state.waits_since_ms is not None
            if self._now_ms[session_id] - state.waits_since_ms > self._limits.longest_ms
        ]
        return [released for stream in overdue for released in self._give_up(stream)]

    def cut(self, stream: Stream) -> None:
        """The segment died: what waits is thrown away, and what still comes is ignored."""
        self._discard(stream)
        self._remember_over(stream)

    def streams(self, session_id: str) -> list[Stream]:
        """The session's streams whose fin has not been released."""
        return [stream for stream in self._open if stream.segment.session_id == session_id]

    def sessions(self) -> list[str]:
        """Those with such streams."""
        return list(dict.fromkeys(stream.segment.session_id for stream in self._open))

    def finish(self, stream: Stream) -> list[Released]:
        """Nothing more will come: releases what is there and reports what is not."""
        released = self._give_up(stream)
        if stream in self._open:
            released.append(Gap(stream, self._open[stream].next_seq, None))
            self.cut(stream)
        return released

    def forget(self, session_id: str) -> None:
        """The session is over; its ids may start anew."""
        for stream in self.streams(session_id):
            self._discard(stream)
        for stream in [stream for stream in self._over if stream.segment.session_id == session_id]:
            del self._over[stream]
        self._now_ms.pop(session_id, None)

    def _hold(self, state: _Open, seq: int, item: Any, size_bytes: int) -> None:
        state.held[seq] = (item, size_bytes)
        self._held_messages += 1
        self._held_bytes += size_bytes

    def _release(self, stream: Stream, state: _Open) -> list[Released]:
        released: list[Released] = []
        while state.next_seq in state.held:
            item, size_bytes = state.held.pop(state.next_seq)
            self._held_messages -= 1
            self._held_bytes -= size_bytes
            released.append(Piece(stream, item))
            state.next_seq += 1
            state.waits_since_ms = None
        if state.fin_seq is not None and state.next_seq > state.fin_seq:
            released.append(Whole(stream))
            self.cut(stream)
        return released

    def _give_up(self, stream: Stream) -> list[Released]:
        """Goes on behind every gap of this stream that something waits behind."""
        state, released = self._open[stream], []
        while state.held:
            first_held = min(state.held)
            released.append(Gap(stream, state.next_seq, first_held - 1))
            state.next_seq = first_held
            released += self._release(stream, state)
        return released

    def _enforce_limits(self) -> list[Released]:
        released: list[Released] = []
        while self._held_messages > self._limits.most_messages:
            released += self._give_up(max(self._open, key=lambda stream: len(self._open[stream].held)))
        while self._held_bytes > self._limits.most_bytes:
            released += self._give_up(max(self._open, key=lambda stream: self._open[stream].held_bytes))
        while len(self._open) > self._limits.most_streams:
            released += self.finish(next(iter(self._open)))
        return released

    def _discard(self, stream: Stream) -> None:
        state = self._open.pop(stream, None)
        for _, size_bytes in state.held.values() if state else ():
            self._held_messages -= 1
            self._held_bytes -= size_bytes

    def _remember_over(self, stream: Stream) -> None:
        self._open.pop(stream, None)
        self._over[stream] = None
        if len(self._over) > self._limits.most_remembered:
            self._over.popitem(last=False)
