"""The receiving side of a node: from the wire to a bounded queue, past the gate.

The pump thread says what comes in (`receive`, `closed`, `restarted`, `stop`, `close`), the worker takes it and says
what became of it. Nothing here waits for a model, so the pump is always back at `next()` at once.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from dora_voice import arrow
from dora_voice.fragments import Fragments
from dora_voice.gate import MOST_SESSIONS, Gate
from dora_voice.header import WireError
from dora_voice.messages import DEFAULT_SESSION, Control, Message, Played, Segment, is_bare_finish
from dora_voice.stage import Ports

log = logging.getLogger("dora_voice.intake")

MOST_QUEUED_BYTES = 64 * 2**20
MOST_QUEUED_MESSAGES = 50_000
MOST_UNDECIDED = 4096
LOG_EVERY = 1000


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the worker has to act on before it does anything else."""

    what: Literal["flushed", "dropped", "ended"]
    segment: Segment

    def concerns(self, segment: Segment) -> bool:
        """Whether this segment died of it."""
        if self.what == "dropped":
            return segment == self.segment
        if self.what == "ended":
            return segment.session_id == self.segment.session_id
        return segment.is_older_than(self.segment)


@dataclass(frozen=True, slots=True)
class Lost:
    """Who feeds this input crashed, or is gone for good: what it had does not come any more."""

    port: str
    for_good: bool


@dataclass(frozen=True, slots=True)
class Nudge:
    """Something has happened in the stage, on another thread: what waits looks up."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A readable, living message and the time it came, in seconds of the node's clock."""

    message: Message
    at_s: float


class Intake:
    """Thread-safe. `wake` is called whenever there is something to take."""

    def __init__(
        self,
        ports: Ports,
        wired: Iterable[str],
        clock: Callable[[], float],
        wake: Callable[[], None] = lambda: None,
        most_queued_bytes: int = MOST_QUEUED_BYTES,
        own_crash: str = "",
    ) -> None:
        """own_crash: the error of the segments that this node was working on when it crashed, if it did."""
        self.counts: Counter[str] = Counter()
        self.stopping = False
        self.last_news_s = clock()
        """When something came in for the last time."""
        self._ports = ports
        self._open_inputs = {port for port in wired if port not in ports.feedback}
        self._clock = clock
        self._wake = wake
        self._most_queued_bytes = most_queued_bytes
        self._own_crash = own_crash
        self._mints = Control in ports.outputs.values()
        """Whether this node numbers the segments."""
        self._lock = threading.Lock()
        self._gate = Gate()
        self._newest: OrderedDict[str, int] = OrderedDict()
        self._sessions_on: dict[str, dict[str, None]] = {port: {} for port in ports.inputs}
        self._fragments = Fragments(ports, self.counts)
        self._undecided: OrderedDict[Segment, None] = OrderedDict()
        """Segments that began, and may yet be taken back."""
        self._arrivals: deque[Notice | Lost | Nudge | Arrival] = deque()
        self._queued_bytes = 0
        self._queued_messages = 0

    def receive(self, port: str, value: Any, metadata: Mapping[str, Any]) -> None:
        """One input event of dora. What can't be used is logged and counted, never raised."""
        if port not in self._ports.inputs:
            self._refuse(f"input {port!r} is unknown: expected one of {', '.join(self._ports.inputs)}")
            return
        try:
            message = arrow.from_arrow(port, self._ports.inputs[port], value, metadata, self._ports.rate_hz)
        except WireError as error:
            self._refuse(str(error))
            return
        with self._lock:
            self._admit(message)
        self._wake()

    def closed(self, port: str) -> None:
        """The producer of this input has gone for good. What it had sent may still come."""
        with self._lock:
            self._open_inputs.discard(port)
            self.last_news_s = self._clock()
            if port in self._ports.feedback:
                self._arrivals.append(Lost(port, for_good=True))
        self._wake()

    def restarted(self, ports: Collection[str], producer: str) -> None:
        """Whoever feeds these inputs crashed: what it left open ends with an error, or is taken as it is."""
        error = f"restarted: node {producer} crashed"
        with self._lock:
            for port in ports:
                if self._ports.inputs[port] is Control:
                    self._commit_undecided(port, error)
                else:
                    self._end_open(port, error)
                if self._ports.records or port in self._ports.feedback:
                    self._arrivals.append(Lost(port, for_good=False))
        self._wake()

    def stop(self) -> None:
        """The dataflow is being stopped: nothing is waited for any more."""
        self.stopping = True
        self._wake()

    def close(self) -> None:
        """Nothing more will come on any input."""
        with self._lock:
            self._open_inputs.clear()
        self._wake()

    def give_up(self) -> None:
        """Nothing more comes: what was left open ends with an error."""
        with self._lock:
            for port in self._ports.inputs:
                if port not in self._ports.unordered | self._ports.continuous:
                    self._end_open(port, "closed: its producer has ended")

    @property
    def is_open(self) -> bool:
        """Whether more than feedback may still come."""
        return bool(self._open_inputs)

    def nudge(self) -> None:
        with self._lock:
            self._arrivals.append(Nudge())
        self._wake()

    def take(self) -> list[Notice | Lost | Nudge | Arrival]:
        """Everything that has come since the last call, in order."""
        with self._lock:
            arrivals = list(self._arrivals)
            self._arrivals.clear()
            return arrivals

    def began(self, message: Message) -> None:
        """The worker has taken up this message: its place in the queue is free."""
        with self._lock:
            self._queued_bytes -= arrow.size_bytes(message)
            self._queued_messages -= 1

    def is_dead(self, segment: Segment) -> bool:
        with self._lock:
            return self._gate.is_dead(segment)

    def is_dropped(self, segment: Segment) -> bool:
        with self._lock:
            return self._gate.is_dropped(segment)

    def sessions_on(self, port: str) -> list[str]:
        """The sessions that came in on this input and are not over."""
        with self._lock:
            return list(self._sessions_on[port])

    def minted(self, segment: Segment) -> None:
        """This node has given a segment its number: it is the newest that it knows."""
        with self._lock:
            self._newest[segment.session_id] = max(segment.segment_id, self._newest.get(segment.session_id, 0))

    def forget(self, session_id: str, but: Iterable[Message]) -> None:
        """The session has finished. What was played of it still comes; and the gate knows what was flushed.

        but: what has come already of the next session of that name.
        """
        with self._lock:
            self._forget(session_id)
            for message in but:
                self._know(message.segment, message.port)
                self._fragments.admit(message)

    def _refuse(self, why: str) -> None:
        self.counts["unreadable"] += 1
        log.warning("dropped a message: %s", why)

    def _end_open(self, port: str, error: str, session_id: str | None = None, but: Segment | None = None) -> None:
        """Segments whose fin will not come any more get one, with the reason."""
        kind = self._ports.inputs[port]
        for segment in self._fragments.open_on(port):
            is_meant = session_id in (None, segment.session_id) and segment != but
            # Of the dead, only what was played of them still matters.
            if is_meant and (kind is Played or not self._gate.is_dead(segment)):
                fin = arrow.empty(port, kind, self._ports.rate_hz, fin=True, error=error)
                self._admit(replace(fin, session_id=segment.session_id, segment_id=segment.segment_id))

    def _commit_undecided(self, port: str, error: str) -> None:
        for segment in [known for known in self._undecided if not self._gate.is_dead(known)]:
            self._admit(Control(port=port, verb="commit", **segment._asdict(), error=error))

    def _decide(self, control: Control) -> None:
        if control.verb == "start":
            self._undecided[control.segment] = None
            if len(self._undecided) > MOST_UNDECIDED:
                self._undecided.popitem(last=False)
        elif control.verb in ("commit", "drop"):
            self._undecided.pop(control.segment, None)

    def _admit(self, message: Message) -> None:
        message = self._identify(message)
        if self._is_torso(message):
            fin = arrow.empty(message.port, type(message), self._ports.rate_hz, fin=True, error=self._own_crash)
            message = replace(fin, **message.segment._asdict(), seq=message.seq, finish=message.finish)
        segment = message.segment
        if message.finish and message.port not in self._ports.unordered | self._ports.continuous:
            own = None if is_bare_finish(message) else segment
            self._end_open(message.port, "incomplete: the session finished before its fin", segment.session_id, own)
        if message.flush or (isinstance(message, Control) and message.verb == "flush"):
            self._notice_if(self._gate.flush(segment), "flushed", segment)
        if isinstance(message, Control) and message.verb == "drop":
            self._notice_if(self._gate.drop(segment), "dropped", segment)
        if self._is_let_in(message):
            self._know(segment, message.port)
            if isinstance(message, Control):
                self._decide(message)
            self._queued_bytes += arrow.size_bytes(message)
            self._queued_messages += 1
            self.last_news_s = self._clock()
            self._arrivals.append(Arrival(message, self.last_news_s))
        elif message.finish:
            # Whatever carries it, the end of a session gets through.
            finish = arrow.empty(message.port, type(message), self._ports.rate_hz, finish=True)
            self._admit(replace(finish, session_id=segment.session_id))
        if isinstance(message, Control) and message.verb == "end":
            self._notice_if(True, "ended", segment)
            self._forget(segment.session_id)
            self._gate.end(segment.session_id)
            self._fragments.forget(segment.session_id, self._ports.inputs)

    def _is_torso(self, message: Message) -> bool:
        """Whether the beginning of its segment went down with this node."""
        ports = self._ports
        is_told_anew = message.port in ports.unordered | ports.continuous | ports.feedback | ports.concurrent
        if not self._own_crash or is_told_anew or isinstance(message, (Control, Played)):
            return False
        return bool(message.seq) and not self._fragments.is_known(message.segment, message.port)

    def _is_let_in(self, message: Message) -> bool:
        """Control speaks about the dead too, and what was played is how the past is known."""
        if is_bare_finish(message):
            return True
        if not isinstance(message, (Control, Played)) and self._is_stale(message):
            self.counts["stale"] += 1
            return False
        if self._is_full(message):
            self._overflow(message)
            return False
        return isinstance(message, Control) or self._fragments.admit(message)

    def _identify(self, message: Message) -> Message:
        """Fills in the ids that the sender left out (DESIGN §2, "if missing")."""
        if message.port in self._ports.continuous:
            return replace(message, session_id=message.session_id or DEFAULT_SESSION, segment_id=0)
        if message.flush and message.session_id is None and message.segment_id is None:
            for session_id in self._sessions_on[message.port]:
                self._notice_if(self._gate.flush(self._next(session_id)), "flushed", self._next(session_id))
            return replace(message, session_id=DEFAULT_SESSION, segment_id=self._next(DEFAULT_SESSION).segment_id)
        session_id = message.session_id or DEFAULT_SESSION
        if message.segment_id is not None:
            return replace(message, session_id=session_id)
        newest = Segment(session_id, self._newest.get(session_id, 1))
        is_over = self._is_over(newest, message.port) or self._gate.is_dead(newest)
        goes_on = isinstance(message, (Played, Control)) or (self._mints and message.port in self._ports.feedback)
        if not goes_on and (is_over or message.flush):
            newest = self._next(session_id)
        return replace(message, session_id=session_id, segment_id=newest.segment_id)

    def _is_over(self, newest: Segment, port: str) -> bool:
        """Whether what comes next on this input is no part of the newest segment any more."""
        if port in self._ports.concurrent:
            return newest.session_id in self._newest
        return any(self._fragments.has_ended(newest, each) for each in {port, *self._ports.concurrent})

    def _next(self, session_id: str) -> Segment:
        return Segment(session_id, self._newest.get(session_id, 0) + 1)

    def _know(self, segment: Segment, port: str) -> None:
        self._newest[segment.session_id] = max(segment.segment_id, self._newest.get(segment.session_id, 0))
        self._newest.move_to_end(segment.session_id)
        self._sessions_on[port][segment.session_id] = None
        if len(self._newest) > MOST_SESSIONS:
            self._forget(next(iter(self._newest)))

    def _forget(self, session_id: str) -> None:
        self._newest.pop(session_id, None)
        for segment in [segment for segment in self._undecided if segment.session_id == session_id]:
            del self._undecided[segment]
        for sessions in self._sessions_on.values():
            sessions.pop(session_id, None)
        self._fragments.forget(session_id, self._ports.inputs.keys() - self._ports.feedback)

    def _notice_if(self, is_news: bool, what: Literal["flushed", "dropped", "ended"], segment: Segment) -> None:
        if is_news:
            self._arrivals.append(Notice(what, segment))

    def _is_stale(self, message: Message) -> bool:
        if message.port in self._ports.continuous:
            return False
        still_counts = self._ports.continued if self._gate.is_dropped(message.segment) else self._ports.remembered
        return message.port not in still_counts and self._gate.is_dead(message.segment)

    def _is_full(self, message: Message) -> bool:
        """As much again is kept free for what steers and ends."""
        spare = 2 if message.fin or message.finish or isinstance(message, (Control, Played)) else 1
        most_bytes, most_messages = spare * self._most_queued_bytes, spare * MOST_QUEUED_MESSAGES
        return self._queued_bytes > most_bytes or self._queued_messages >= most_messages

    def _overflow(self, message: Message) -> None:
        self.counts["overflow"] += 1
        if self.counts["overflow"] % LOG_EVERY == 1:
            log.warning(
                "input %r: queue full at %d bytes: dropped seq=%s of session=%s segment=%s (%d dropped so far)",
                *(message.port, self._queued_bytes, message.seq, message.session_id, message.segment_id),
                self.counts["overflow"],
            )
