"""Runs a stage: one lane per session and input, on one thread, without I/O and without a clock of its own.

Whoever is first in line goes first: a message gets its number when it comes, a generator a new one
after each yield. So short messages are served in order of arrival, sessions share the thread fairly,
and control and feedback reach the stage between two yields of whatever runs.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeGuard

from dora_voice.intake import Arrival, Intake, Lost, Notice, Nudge
from dora_voice.messages import Control, Message, Played, is_bare_finish
from dora_voice.outgoing import Outgoing
from dora_voice.stage import Ports, Stage, Surroundings, Wait, Work

log = logging.getLogger("dora_voice.stage")

FINISH = "finish"
"""Names the lane in which a session's end is worked on."""


@dataclass(slots=True, eq=False)
class Lane:
    """What waits on one input of one session, and what runs there."""

    session_id: str
    port: str
    """The input's name, or that of other work."""
    number: int = 0
    """Of the message, where messages don't wait for each other."""
    queue: deque[tuple[int, Arrival]] = field(default_factory=deque)
    work: Work | None = None
    message: Message | None = None
    """The message that the work is about; None for the end of a session and for a stage's own `run`."""
    turn: float = 0
    """The place in line while work runs."""
    parked: bool = False
    wake_at_s: float = math.inf
    answer: float | None = None
    """What the yield of a Wait returns."""

    @property
    def place(self) -> float:
        if self.work is not None:
            return math.inf if self.parked else self.turn
        return self.queue[0][0] if self.queue else math.inf

    def clear(self) -> None:
        self.work, self.message, self.parked, self.wake_at_s, self.answer = None, None, False, math.inf, None


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
        self._stage: Any = stage
        self._ports = ports
        self._intake = intake
        self._clock = surroundings.clock
        self._outgoing = Outgoing(ports, intake.is_dead, surroundings.clock, send)
        self._line = count()
        self._inbox: deque[Notice | Lost | Nudge | Arrival] = deque()
        self._lanes: dict[tuple[str, str, int], Lane] = {}
        self._last_input = next((port for port in ports.ends_with if port in surroundings.wired), None)
        if hasattr(stage, "started"):
            self._stage.started(surroundings)
        self._run = Lane("", "run", turn=next(self._line), work=self._stage.run() if hasattr(stage, "run") else None)

    def step(self) -> bool:
        """Acts on what came in, and lets the first in line go on to its next yield. False: all wait."""
        self._take()
        self._wake_due()
        lane = min(self._all(), key=self._place)
        if self._place(lane) == math.inf:
            return False
        self._advance(lane)
        self._drop_if_empty(lane)
        return True

    def next_wake_s(self) -> float:
        """When the first of the waiting lanes wants to be resumed, in seconds of the clock; or infinity."""
        return min(lane.wake_at_s for lane in self._all())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is running, queued or waiting, other than the stage's own `run`."""
        return not self._inbox and not any(lane.work or lane.queue for lane in self._lanes.values())

    @property
    def is_running(self) -> bool:
        """Whether the stage's own `run` goes on."""
        return self._run.work is not None

    @property
    def stale(self) -> int:
        """How many messages were made too late to be sent."""
        return self._outgoing.stale

    def finish_sessions(self) -> None:
        """The inputs ended: sessions that nobody finished are finished now."""
        self._intake.give_up()
        self._take()
        for session_id in self._intake.sessions_on(self._last_input) if self._last_input else ():
            self._begin_finish(session_id)

    def close(self) -> None:
        """Closes everything that runs, then the stage."""
        for lane in self._all():
            self._close_work(lane)
            lane.clear()
        self._tell("close")

    def _place(self, lane: Lane) -> float:
        """In line. What comes behind a session's last message belongs to another one, and waits for its end."""
        is_next = lane.work is None and lane.port == self._last_input
        return math.inf if is_next and (lane.session_id, FINISH, 0) in self._lanes else lane.place

    def _all(self) -> Iterator[Lane]:
        yield self._run
        yield from self._lanes.values()

    def _take(self) -> None:
        """Queues messages, and acts on notices: on flush and drop at once, or in order where all is written down."""
        self._inbox.extend(self._intake.take())
        if not self._ports.records:
            for notice in [item for item in self._inbox if _is_urgent(item)]:
                self._inbox.remove(notice)
                self._act_on(notice)
        while self._inbox:
            item = self._inbox[0]
            if isinstance(item, Arrival):
                place = next(self._line)
                self._lane_for(item.message, place).queue.append((place, item))
            elif self._ports.records and any(lane.place < math.inf for lane in self._lanes.values()):
                return
            else:
                self._act_on(item)
            self._inbox.popleft()

    def _lane_for(self, message: Message, place: int) -> Lane:
        number = place if message.port in self._ports.concurrent else 0
        return self._lane(message.segment.session_id, message.port, number)

    def _lane(self, session_id: str, port: str, number: int = 0) -> Lane:
        return self._lanes.setdefault((session_id, port, number), Lane(session_id, port, number))

    def _act_on(self, notice: Notice | Lost | Nudge) -> None:
        if isinstance(notice, Nudge):
            pass
        elif isinstance(notice, Lost):
            self._tell("lost", notice.port, notice.for_good)
        elif notice.what == "ended":
            session_id = notice.segment.session_id
            for lane in [lane for lane in self._lanes.values() if lane.session_id == session_id]:
                self._end(lane)
            self._outgoing.forget(session_id)
            self._tell("ended", session_id)
        else:
            for lane in [lane for lane in self._lanes.values() if self._is_dead(lane.message)]:
                self._close_work(lane)
                self._done(lane)
                self._drop_if_empty(lane)
            self._outgoing.died(notice)
            self._tell(notice.what, notice.segment)
        self._wake_parked()

    def _drop_if_empty(self, lane: Lane) -> None:
        if lane.work is None and not lane.queue:
            self._lanes.pop((lane.session_id, lane.port, lane.number), None)

    def _end(self, lane: Lane) -> None:
        """Nothing is left of this lane."""
        self._close_work(lane)
        for _, arrival in lane.queue:
            self._intake.began(arrival.message)
        del self._lanes[lane.session_id, lane.port, lane.number]

    def _advance(self, lane: Lane) -> None:
        if lane.work is None and not self._begin(lane):
            return
        assert lane.work is not None
        try:
            answer, lane.answer = lane.answer, None
            made = lane.work.send(answer)
            if isinstance(made, Message):
                self._outgoing.send(made, lane.message)
                if isinstance(made, Control) and made.verb == "start":
                    self._intake.minted(made.segment)
            elif made is not None and not isinstance(made, Wait):
                raise TypeError(f"the stage yielded {made!r}: expected a Message, a Wait or None")
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
        lane.message = message
        if self._is_dead(message) or self._is_over(message):
            is_dropped = self._intake.is_dropped(message.segment)
            if message.port in (self._ports.continued if is_dropped else self._ports.remembered):
                self._tell("late", message)
            else:
                self._intake.counts["stale"] += 1
            self._done(lane)
            return False
        if isinstance(message, Control) and message.verb == "commit":
            self._outgoing.commit(message.segment)
        if message.speculative and self._outgoing.is_committed(message.segment):
            lane.message = message = replace(message, speculative=False)
        if self._is_answered(message):
            if message.error:
                self._end_with_error(message, message.error)
                self._done(lane)
                return False
            self._outgoing.began(message.segment, arrival.at_s)
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
        lane.clear()
        if message is not None and message.finish and message.port == self._last_input:
            self._begin_finish(message.segment.session_id)
        self._wake_parked()

    def _fail(self, lane: Lane, error: Exception) -> None:
        """An exception ends the segment it happened in, and nothing else; in `run` it ends the node."""
        if lane is self._run:
            raise error
        message = lane.message
        log.error("%s in %s", _describe(error), _where(lane), exc_info=error)
        if message is not None and self._is_answered(message):
            self._end_with_error(message, _describe(error))
        self._close_work(lane)
        self._done(lane)

    def _end_with_error(self, message: Message, error: str) -> None:
        self._outgoing.end_with_error(message.segment, error, speculative=message.speculative)
        self._tell("failed", message.segment)

    def _close_work(self, lane: Lane) -> None:
        """Closes what runs in this lane at its current yield."""
        try:
            if lane.work is not None:
                lane.work.close()
        except Exception as error:
            log.error("%s while closing %s", _describe(error), _where(lane), exc_info=error)

    def _begin_finish(self, session_id: str) -> None:
        lane = self._lane(session_id, FINISH)
        if lane.work is None:
            lane.turn, lane.work = next(self._line), self._finish(session_id)

    def _finish(self, session_id: str) -> Work:
        """What is left of the session, then its last message on every output, then oblivion."""
        try:
            if hasattr(self._stage, "finish"):
                yield from self._stage.finish(session_id)
        except Exception as error:
            log.error("%s at the end of session=%s", _describe(error), session_id, exc_info=error)
        self._outgoing.finish(session_id)
        self._tell("ended", session_id)
        self._outgoing.forget(session_id)
        lane = self._lanes.get((session_id, self._last_input or "", 0))
        self._intake.forget(session_id, but=[arrival.message for _, arrival in lane.queue] if lane else [])

    def _is_dead(self, message: Message | None) -> bool:
        if message is None or not _is_data(message) or self._ports.records or message.port in self._ports.continuous:
            return False
        return self._intake.is_dead(message.segment)

    def _is_answered(self, message: Message) -> bool:
        """Whether this message's segment ends on the reply output with what is made of it. What comes as feedback only
        adds to what other inputs bring."""
        return self._ports.reply is not None and _is_data(message) and message.port not in self._ports.feedback

    def _is_over(self, message: Message) -> bool:
        """Whether its segment got its fin already. Where messages don't wait for each other, the stage decides."""
        if message.port in self._ports.concurrent:
            return False
        return _is_data(message) and self._ports.reply is not None and self._outgoing.is_over(message.segment)

    def _wake_due(self) -> None:
        now = self._clock()
        for lane in self._all():
            if lane.parked and lane.wake_at_s <= now:
                self._resume(lane, 0.0)

    def _wake_parked(self) -> None:
        now = self._clock()
        for lane in self._all():
            if lane.parked:
                self._resume(lane, max(0.0, (lane.wake_at_s - now) * 1000))

    def _resume(self, lane: Lane, left_ms: float) -> None:
        lane.parked, lane.wake_at_s, lane.answer, lane.turn = False, math.inf, left_ms, next(self._line)

    def _tell(self, hook: str, *what: Any) -> None:
        """Calls an optional method of the stage; an exception there is logged and ends nothing else."""
        try:
            if hasattr(self._stage, hook):
                getattr(self._stage, hook)(*what)
        except Exception as error:
            log.error("%s in %s%r", _describe(error), hook, what, exc_info=error)


def _is_urgent(item: Notice | Lost | Nudge | Arrival) -> TypeGuard[Notice]:
    return isinstance(item, Notice) and item.what != "ended"


def _is_data(message: Message) -> bool:
    """Whether a message is content that can be stale, and that a segment can fail at."""
    return not isinstance(message, (Control, Played)) and not is_bare_finish(message)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _where(lane: Lane) -> str:
    message = lane.message
    if message is None:
        return f"session={lane.session_id} {lane.port}"
    return f"input {message.port!r} session={message.session_id} segment={message.segment_id}"
