"""Runs a stage: one lane per session and input, on one thread, without I/O and without a clock of its own.

Whoever is first in line goes first: a message gets its number when it comes, a generator a new one
after each yield. So short messages are served in order of arrival, sessions share the thread fairly,
and control and feedback reach the stage between two yields of whatever runs.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from dora_voice import arrow
from dora_voice.intake import Arrival, Intake, Notice
from dora_voice.messages import DEFAULT_SESSION, Control, Message, Played, Segment, is_bare_finish
from dora_voice.stage import Ports, Stage, Surroundings, Wait, Work

log = logging.getLogger("dora_voice.stage")

MOST_REMEMBERED = 4096


@dataclass(slots=True, eq=False)
class Lane:
    """What waits on one input of one session, and what runs there."""

    session_id: str
    port: str
    queue: deque[tuple[int, Arrival]] = field(default_factory=deque)
    work: Work | None = None
    message: Message | None = None
    turn: float = 0
    """The place in line while work runs."""
    parked: bool = False
    wake_at_s: float = math.inf
    answer: float | None = None
    """What the yield of a Wait returns."""

    def place(self) -> float:
        if self.work is not None:
            return math.inf if self.parked else self.turn
        return self.queue[0][0] if self.queue else math.inf


@dataclass(slots=True)
class Progress:
    """The times of one segment, in seconds of the node's clock."""

    arrived_s: float
    began_s: float
    first_output_s: float | None = None


class Scheduler:
    """Drives `stage` with what `intake` lets in; calls `send` with every stamped message."""

    def __init__(
        self,
        stage: Stage,
        ports: Ports,
        intake: Intake,
        surroundings: Surroundings,
        send: Callable[[Message], None],
    ) -> None:
        self._stage = stage
        self._ports = ports
        self._intake = intake
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._send = send
        self._line = count()
        self._inbox: deque[Notice | Arrival] = deque()
        # What a stage without outputs was given before a flush had happened, and is still to be written down.
        self._is_recorder = not ports.outputs
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._seqs: OrderedDict[tuple[Segment, str], int] = OrderedDict()
        self._over: OrderedDict[Segment, None] = OrderedDict()
        self._committed: OrderedDict[Segment, None] = OrderedDict()
        self._progress: OrderedDict[Segment, Progress] = OrderedDict()
        self._finished: set[str] = set()
        self._last_input = next((port for port in ports.ends_with if port in surroundings.wired), None)
        self._tell("started", surroundings)
        self._run_lane = self._start_run()

    def step(self) -> bool:
        """Acts on what came in, and lets the first in line go on to its next yield. False: all wait."""
        self._take()
        self._wake_due()
        lane = min(self._lanes.values(), key=Lane.place, default=None)
        if lane is None or lane.place() == math.inf:
            return False
        self._advance(lane)
        if lane.work is None and not lane.queue:
            self._lanes.pop((lane.session_id, lane.port), None)
        return True

    def next_wake_s(self) -> float:
        """When the first of the waiting lanes wants to be resumed, in seconds of the clock; or infinity."""
        return min((lane.wake_at_s for lane in self._lanes.values() if lane.parked), default=math.inf)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is running, queued or waiting, other than the stage's own `run`."""
        others = [lane for lane in self._lanes.values() if lane is not self._run_lane]
        return not self._inbox and not any(lane.work or lane.queue for lane in others)

    @property
    def is_running(self) -> bool:
        """Whether the stage's own `run` goes on."""
        return self._run_lane is not None and self._run_lane.work is not None

    def finish_sessions(self) -> None:
        """The inputs ended: sessions that nobody finished are finished now."""
        for session_id in self._intake.sessions_on(self._last_input) if self._last_input else ():
            self._begin_finish(session_id)

    def close(self) -> None:
        """Closes everything that runs, then the stage."""
        for lane in self._lanes.values():
            self._close(lane)
        self._tell("close")

    def _take(self) -> None:
        """Queues messages, and acts on notices: at once, or in order where everything is written down."""
        self._inbox.extend(self._intake.take())
        if not self._is_recorder:
            for notice in [item for item in self._inbox if isinstance(item, Notice)]:
                self._act_on(notice)
        while self._inbox:
            item = self._inbox[0]
            if isinstance(item, Arrival):
                lane = self._lane(item.message.segment.session_id, item.message.port)
                lane.queue.append((next(self._line), item))
            elif self._is_recorder:
                if any(lane.place() < math.inf for lane in self._lanes.values()):
                    return
                self._act_on(item)
            self._inbox.popleft()

    def _lane(self, session_id: str, port: str) -> Lane:
        return self._lanes.setdefault((session_id, port), Lane(session_id, port))

    def _act_on(self, notice: Notice) -> None:
        for lane in list(self._lanes.values()):
            if lane.session_id != notice.segment.session_id or lane is self._run_lane:
                continue
            if notice.what == "ended":
                self._close(lane)
                lane.queue.clear()
            elif self._is_stale(lane.message):
                self._close(lane)
        if notice.what == "ended":
            self._forget(notice.segment.session_id)
            self._tell("ended", notice.segment.session_id)
        else:
            self._tell(notice.what, notice.segment)
        self._wake_parked()

    def _advance(self, lane: Lane) -> None:
        if lane.work is None and not self._begin(lane):
            return
        assert lane.work is not None
        try:
            answer, lane.answer = lane.answer, None
            made = lane.work.send(answer)
            if isinstance(made, Message):
                self._emit(made, lane.message)
        except StopIteration:
            self._done(lane)
            return
        except Exception as error:
            self._fail(lane, error)
            return
        lane.turn = next(self._line)
        if isinstance(made, Wait):
            lane.parked = True
            lane.wake_at_s = math.inf if made.at_most_ms is None else self._clock() + made.at_most_ms / 1000
        else:
            self._wake_parked()

    def _begin(self, lane: Lane) -> bool:
        """Takes up the lane's next message. False when there is nothing to run for it."""
        _, arrival = lane.queue.popleft()
        message = arrival.message
        self._intake.began(message)
        if self._is_stale(message):
            self._intake.counts["stale"] += 1
            return False
        if isinstance(message, Control) and message.verb == "commit":
            self._remember(self._committed, message.segment, None)
        lane.message = message
        is_data = not isinstance(message, (Control, Played))
        if message.error and self._ports.reply and is_data:
            self._end_with_error(message.segment, message.error, message.speculative)
            self._done(lane)
            return False
        if self._ports.reply and is_data:
            self._progress.setdefault(message.segment, Progress(arrival.at_s, self._clock()))
        if is_bare_finish(message):
            self._done(lane)
            return False
        try:
            lane.work = self._stage.process(message)
        except Exception as error:
            self._fail(lane, error)
            return False
        if lane.work is None:
            self._done(lane)
        return lane.work is not None

    def _done(self, lane: Lane) -> None:
        message = lane.message
        lane.work, lane.message, lane.parked, lane.wake_at_s = None, None, False, math.inf
        if message is not None and message.finish and message.port == self._last_input:
            self._begin_finish(message.segment.session_id)
        self._wake_parked()

    def _fail(self, lane: Lane, error: Exception) -> None:
        """An exception ends the segment it happened in, and nothing else; in `run` it ends the node."""
        if lane is self._run_lane:
            raise error
        message = lane.message
        log.error("%s in %s", _describe(error), _describe_lane(lane), exc_info=error)
        if message is not None and self._ports.reply and not isinstance(message, (Control, Played)):
            self._end_with_error(message.segment, _describe(error), message.speculative)
        self._close_work(lane)
        self._done(lane)

    def _end_with_error(self, segment: Segment, error: str, speculative: bool) -> None:
        assert self._ports.reply is not None
        fin = arrow.empty(self._ports.reply, self._ports.outputs[self._ports.reply], fin=True, error=error)
        self._emit(replace(fin, session_id=segment.session_id, segment_id=segment.segment_id, speculative=speculative))
        self._tell("failed", segment)

    def _close(self, lane: Lane) -> None:
        """Closes what runs in this lane at its current yield, and leaves the lane free."""
        self._close_work(lane)
        lane.message, lane.parked, lane.wake_at_s, lane.answer = None, False, math.inf, None

    def _close_work(self, lane: Lane) -> None:
        work, lane.work = lane.work, None
        try:
            if work is not None:
                work.close()
        except Exception as error:
            log.error("%s while closing %s", _describe(error), _describe_lane(lane), exc_info=error)

    def _emit(self, made: Message, running: Message | None = None) -> None:
        """Stamps what the stage made and sends it, unless its segment died or is over.

        What a `run` makes may belong to no segment at all.
        """
        if running is not None:
            made = replace(
                made,
                session_id=made.session_id or running.session_id,
                segment_id=running.segment_id if made.segment_id is None else made.segment_id,
                speculative=made.speculative or running.speculative,
            )
        if made.segment_id is None:
            made = replace(made, seq=self._next_seq(Segment(made.session_id or DEFAULT_SESSION, 0), made.port))
            self._send(made)
            return
        segment, is_reply = made.segment, made.port == self._ports.reply
        is_late = self._intake.is_dead(segment) or (is_reply and segment in self._over)
        if is_late and not isinstance(made, (Played, Control)):
            self._intake.counts["stale"] += 1
            return
        if made.speculative and segment in self._committed:
            made = replace(made, speculative=False)
        if not isinstance(made, Control):
            made = replace(made, seq=self._next_seq(segment, made.port))
        self._send(made)
        if is_reply:
            self._measure(made)

    def _next_seq(self, segment: Segment, port: str) -> int:
        seq = self._seqs.pop((segment, port), -1) + 1
        self._remember(self._seqs, (segment, port), seq)
        return seq

    def _measure(self, made: Message) -> None:
        segment, now = made.segment, self._clock()
        progress = self._progress.get(segment)
        if progress is not None and progress.first_output_s is None:
            progress.first_output_s = now
        if not made.fin:
            return
        self._remember(self._over, segment, None)
        if progress := self._progress.pop(segment, None):
            log.debug(
                "segment session=%s segment=%d queue_ms=%.1f first_output_ms=%.1f total_ms=%.1f error=%s",
                *segment,
                (progress.began_s - progress.arrived_s) * 1000,
                ((progress.first_output_s or now) - progress.arrived_s) * 1000,
                (now - progress.arrived_s) * 1000,
                made.error,
            )

    def _begin_finish(self, session_id: str) -> None:
        if session_id in self._finished:
            return
        self._finished.add(session_id)
        lane = self._lane(session_id, "")
        lane.turn = next(self._line)
        lane.work = self._finish(session_id)

    def _finish(self, session_id: str) -> Work:
        """What is left of the session, then its last message on every output, then oblivion."""
        if hasattr(self._stage, "finish"):
            yield from self._stage.finish(session_id)  # type: ignore[attr-defined]
        for port, kind in self._ports.outputs.items():
            if kind is not Control:
                self._send(arrow.empty(port, kind, finish=True, session_id=session_id))
        self._tell("ended", session_id)
        self._forget(session_id)
        self._intake.forget(session_id)

    def _forget(self, session_id: str) -> None:
        self._finished.discard(session_id)
        for remembered in (self._over, self._committed, self._progress):
            for segment in [segment for segment in remembered if segment.session_id == session_id]:
                del remembered[segment]
        for key in [key for key in self._seqs if key[0].session_id == session_id]:
            del self._seqs[key]

    def _is_stale(self, message: Message | None) -> bool:
        if message is None or isinstance(message, (Control, Played)) or is_bare_finish(message) or self._is_recorder:
            return False
        if message.port in self._ports.continuous:
            return False
        is_over = self._ports.reply is not None and message.segment in self._over
        return is_over or self._intake.is_dead(message.segment)

    def _wake_due(self) -> None:
        now = self._clock()
        for lane in self._lanes.values():
            if lane.parked and lane.wake_at_s <= now:
                self._resume(lane, 0.0)

    def _wake_parked(self) -> None:
        now = self._clock()
        for lane in self._lanes.values():
            if lane.parked:
                self._resume(lane, max(0.0, (lane.wake_at_s - now) * 1000))

    def _resume(self, lane: Lane, left_ms: float) -> None:
        lane.parked, lane.wake_at_s, lane.answer, lane.turn = False, math.inf, left_ms, next(self._line)

    def _start_run(self) -> Lane | None:
        if not hasattr(self._stage, "run"):
            return None
        lane = self._lane("", "run")
        lane.turn, lane.work = next(self._line), self._stage.run()  # type: ignore[attr-defined]
        return lane

    def _tell(self, hook: str, *what: Any) -> None:
        """Calls an optional method of the stage; an exception there is logged and ends nothing else."""
        method = getattr(self._stage, hook, None)
        if method is None:
            return
        try:
            method(*what)
        except Exception as error:
            log.error("%s in %s%r", _describe(error), hook, what, exc_info=error)

    @staticmethod
    def _remember(remembered: OrderedDict[Any, Any], key: Any, value: Any) -> None:
        remembered[key] = value
        if len(remembered) > MOST_REMEMBERED:
            remembered.popitem(last=False)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _describe_lane(lane: Lane) -> str:
    message = lane.message
    return f"input {message.port!r} session={message.session_id} segment={message.segment_id}" if message else "run"
