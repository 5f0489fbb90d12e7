"""Stages wired together on one sample clock, where messages take a while and models take their time.

As under dora, every node is one thread: while its model computes, it does nothing else, but its intake goes on.
Messages on one edge keep their order; those on different edges overtake each other.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from dora_voice import arrow
from dora_voice.messages import Message
from dora_voice.stage import Ports, Stage, Work
from dora_voice.testing import Driver, SampleClock

OUTSIDE = "source"


class Effort:
    """What the models of one node compute: they say how long it takes, and the node is busy for that time.

    slowness: takes so many times as long.
    """

    def __init__(self, random: Random, slowness: float) -> None:
        self._random = random
        self._slowness = slowness
        self._ms = 0.0

    def spend(self, least_ms: float, most_ms: float) -> None:
        self._ms += self._slowness * self._random.uniform(least_ms, most_ms)

    def take_ms(self) -> float:
        spent, self._ms = self._ms, 0.0
        return spent


class Network:
    """`edges` maps "node/input" to "node/output"; those from OUTSIDE are fed with `say`.

    efforts: of the nodes whose models take time. most_delay_ms: the longest that a message is under way.
    on_sent, on_received: are told of each message with the node's name.
    """

    def __init__(
        self,
        nodes: Mapping[str, tuple[Stage, Ports]],
        edges: Mapping[str, str],
        efforts: Mapping[str, Effort],
        random: Random,
        most_delay_ms: float,
        on_sent: Callable[[str, Message], None],
        on_received: Callable[[str, str, Message], None],
    ) -> None:
        self.clock = SampleClock()
        self._random = random
        self._most_delay_s = most_delay_ms / 1000
        self._on_sent, self._on_received = on_sent, on_received
        self._targets: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for target, output in edges.items():
            node, port = target.split("/")
            self._targets[output].append((node, port))
        self._under_way: list[tuple[float, int, str, str, Message, tuple[Any, dict[str, Any]]]] = []
        self._sent = 0
        self._last_due_s: dict[tuple[str, str, str], float] = {}
        self._efforts = efforts
        self._busy_until_s = dict.fromkeys(nodes, 0.0)
        self._wakes_s = dict.fromkeys(nodes, 0.0)
        self.drivers: dict[str, Driver] = {}
        for name, (stage, ports) in nodes.items():
            if effort := efforts.get(name):
                _take_time(stage, self._busy(name, effort))
            wired = {target.split("/")[1] for target in edges if target.startswith(f"{name}/")}
            self.drivers[name] = Driver(stage, ports, wired=wired, clock=self.clock, on_sent=self._carrier(name))

    def say(self, message: Message) -> None:
        """Sends a message from outside."""
        self._carry(OUTSIDE, message)

    def advance(self, ms: float) -> None:
        """Lets time pass, and everything happen that happens in it."""
        until_s = self.clock.now_s + ms / 1000
        while (next_s := self._next_s()) <= until_s:
            self.clock.now_s = max(self.clock.now_s, next_s)
            self._deliver()
            for name, wake_s in self._wakes_s.items():
                if wake_s <= self.clock.now_s:
                    self._run(name)
        self.clock.now_s = until_s

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, running or queued."""
        return not self._under_way and all(driver.scheduler.is_idle for driver in self.drivers.values())

    def close(self) -> None:
        for driver in self.drivers.values():
            driver.scheduler.close()

    def _next_s(self) -> float:
        wake_s = min(self._wakes_s.values())
        return min(wake_s, self._under_way[0][0]) if self._under_way else wake_s

    def _deliver(self) -> None:
        while self._under_way and self._under_way[0][0] <= self.clock.now_s:
            _, _, node, port, message, (value, metadata) = heapq.heappop(self._under_way)
            self._on_received(node, port, message)
            self.drivers[node].intake.receive(port, value, metadata)
            self._wakes_s[node] = max(self.clock.now_s, self._busy_until_s[node])

    def _run(self, name: str) -> None:
        driver = self.drivers[name]
        while self._busy_until_s[name] <= self.clock.now_s:
            if not driver.step():
                self._wakes_s[name] = driver.scheduler.next_wake_s()
                return
        self._wakes_s[name] = self._busy_until_s[name]

    def _busy(self, name: str, effort: Effort) -> Callable[[], bool]:
        def is_busy() -> bool:
            ms = effort.take_ms()
            self._busy_until_s[name] = self.clock.now_s + ms / 1000
            return ms > 0

        return is_busy

    def _carrier(self, name: str) -> Callable[[Message], None]:
        return lambda message: self._carry(name, message)

    def _carry(self, name: str, message: Message) -> None:
        self._on_sent(name, message)
        on_wire = arrow.to_arrow(message)
        for node, port in self._targets[f"{name}/{message.port}"]:
            edge = (name, node, port)
            due_s = self.clock.now_s + self._random.uniform(0, self._most_delay_s)
            self._last_due_s[edge] = due_s = max(due_s, self._last_due_s.get(edge, 0.0))
            self._sent += 1
            heapq.heappush(self._under_way, (due_s, self._sent, node, port, message, on_wire))


def _take_time(stage: Stage, is_busy: Callable[[], bool]) -> None:
    """Puts a yield after each model call, before what was made of it is sent: there the node is busy."""

    def slowed(work: Work) -> Work:
        try:
            answer = None
            while True:
                made = work.send(answer)
                if is_busy():
                    yield None
                answer = yield made
        except StopIteration:
            is_busy()
        finally:
            work.close()

    process = stage.process
    stage.process = lambda message: slowed(work) if (work := process(message)) is not None else None
    if run := getattr(stage, "run", None):
        stage.run = lambda: slowed(run())
