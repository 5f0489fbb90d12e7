"""Testing stages and nodes without a daemon. Made for other people's nodes, too.

`Driver` runs a stage on one thread with a sample clock: every race is a list of calls.
`Graph` wires several of them into one conversation in one process.
`FakeNode` stands in for `dora.Node`: pass it to a node's `main`.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dora_voice import arrow
from dora_voice.intake import Intake
from dora_voice.messages import SOURCE_RATE_HZ, Message
from dora_voice.scheduler import Scheduler
from dora_voice.stage import Ports, Stage, Surroundings


@dataclass(slots=True)
class SampleClock:
    """A clock that only goes when it is told to. Called, it gives seconds."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


class Driver:
    """One stage, driven step by step. What goes in and out takes the way over the wire's encoding."""

    def __init__(
        self,
        stage: Stage,
        ports: Ports,
        *,
        wired: Iterable[str] | None = None,
        wired_outputs: Iterable[str] | None = None,
        restarts: int = 0,
        run: str = "",
        clock: SampleClock | None = None,
        on_sent: Callable[[Message], None] = lambda message: None,
    ) -> None:
        self.stage, self.ports = stage, ports
        self.clock = clock or SampleClock()
        self.sent: list[Message] = []
        wired = frozenset(ports.inputs if wired is None else wired)
        self._on_sent = on_sent
        self.intake = Intake(ports, wired, self.clock, own_crash="restarted: node crashed" if restarts else "")
        wired_outputs = frozenset(ports.outputs if wired_outputs is None else wired_outputs)
        surroundings = Surroundings(self.clock, wired, wired_outputs, restarts, run, self.intake.nudge)
        self.scheduler = Scheduler(stage, ports, self.intake, surroundings, self._send)

    def feed(self, *messages: Message) -> None:
        """Lets messages arrive, without doing anything about them yet."""
        for message in messages:
            self.intake.receive(message.port, *arrow.to_arrow(message))

    def feed_raw(self, port: str, value: Any, **metadata: Any) -> None:
        """Lets something arrive that no strict writer would have sent; values as for `event`."""
        self.intake.receive(port, _as_arrow(value), metadata)

    def step(self) -> bool:
        """Up to the next yield of whoever is first in line. False when all wait."""
        return self.scheduler.step()

    def run(self) -> list[Message]:
        """Until all wait. Returns what was sent meanwhile."""
        already = len(self.sent)
        while self.step():
            pass
        return self.sent[already:]

    def advance(self, ms: float) -> list[Message]:
        """Lets time pass, and everything happen that happens in it. Returns what was sent."""
        already, until_s = len(self.sent), self.clock.now_s + ms / 1000
        self.run()
        while (wake_s := self.scheduler.next_wake_s()) <= until_s:
            self.clock.now_s = max(self.clock.now_s, wake_s)
            self.run()
        self.clock.now_s = until_s
        self.run()
        return self.sent[already:]

    def end_inputs(self) -> list[Message]:
        """Closes all inputs, as when the nodes before this one have ended."""
        already = len(self.sent)
        self.intake.close()
        self.run()
        self.scheduler.finish_sessions()
        self.run()
        return self.sent[already:]

    def _send(self, message: Message) -> None:
        array, metadata = arrow.to_arrow(message)
        kind = self.ports.outputs[message.port]
        self.sent.append(arrow.from_arrow(message.port, kind, array, metadata))
        self._on_sent(self.sent[-1])


class Graph:
    """Stages wired together in one process, on one thread and one sample clock.

    `edges` maps "node/input" to "node/output". A hop takes no time.
    """

    def __init__(self, nodes: Mapping[str, tuple[Stage, Ports]], edges: Mapping[str, str]) -> None:
        self.clock = SampleClock()
        self.edges = [(source, *target.split("/")) for target, source in edges.items()]
        wired = {name: {port for _, node, port in self.edges if node == name} for name in nodes}
        self.drivers = {
            name: Driver(stage, ports, wired=wired[name], clock=self.clock, on_sent=self._carrier(name))
            for name, (stage, ports) in nodes.items()
        }

    def run(self) -> None:
        """Until every stage waits."""
        while True in [driver.step() for driver in self.drivers.values()]:
            pass

    def advance(self, ms: float) -> None:
        """Lets time pass on the one clock."""
        until_s = self.clock.now_s + ms / 1000
        self.run()
        while (wake_s := min(d.scheduler.next_wake_s() for d in self.drivers.values())) <= until_s:
            self.clock.now_s = max(self.clock.now_s, wake_s)
            self.run()
        self.clock.now_s = until_s
        self.run()

    def _carrier(self, name: str) -> Callable[[Message], None]:
        def carry(message: Message) -> None:
            value, metadata = arrow.to_arrow(message)
            for source, node, port in self.edges:
                if source == f"{name}/{message.port}":
                    self.drivers[node].intake.receive(port, value, metadata)

        return carry


@dataclass(frozen=True, slots=True)
class Sent:
    """One call of `send_output`."""

    output: str
    value: pa.Array
    metadata: dict[str, Any]


class FakeNode:
    """A node without a daemon: keeps what is sent with its metadata, waits like the real one, and can be
    fed from any thread while a stage runs.

    `inputs` and `outputs` are what `node_config()` tells: input → "node/output", and output names.
    `sent` has everything that was sent, in order.
    """

    def __init__(
        self,
        events: Iterable[dict[str, Any]] = (),
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Iterable[str] | None = None,
        restart_count: int = 0,
    ) -> None:
        self.sent: list[Sent] = []
        self._config = {"inputs": dict(inputs), "outputs": list(outputs or ())} if inputs is not None else {}
        self._restart_count = restart_count
        self._events: deque[dict[str, Any] | None] = deque(events)
        self._is_asked = False
        self._changed = threading.Condition()

    def feed(self, *events: dict[str, Any]) -> None:
        with self._changed:
            self._events.extend(events)
            self._changed.notify_all()

    def end(self) -> None:
        """No more events: `next()` gives None after those that are still queued."""
        with self._changed:
            self._events.append(None)
            self._changed.notify_all()

    def wait_until_taken(self, timeout_s: float = 30) -> None:
        """Waits until the node has dealt with all that was fed, and asks for more."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_asked and not self._events, timeout_s):
                raise TimeoutError(f"{len(self._events)} events not taken after {timeout_s} s")

    def wait_for(self, is_enough: Callable[[list[Sent]], bool], timeout_s: float = 30) -> list[Sent]:
        """Waits until what was sent is enough. Raises TimeoutError that tells what was sent."""
        with self._changed:
            if not self._changed.wait_for(lambda: is_enough(self.sent), timeout_s):
                outputs = deque((f"{sent.output} {sent.metadata}" for sent in self.sent), maxlen=20)
                raise TimeoutError(f"not enough after {timeout_s} s; last of {len(self.sent)} sent: {list(outputs)}")
            return list(self.sent)

    def next(self, timeout: float | None = None) -> dict[str, Any] | None:
        with self._changed:
            self._is_asked = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._events, timeout):
                return {"type": "ERROR", "error": "timeout"}
            self._is_asked = False
            return self._events.popleft()

    def send_output(self, output_id: str, data: Any, metadata: dict[str, Any] | None = None) -> None:
        with self._changed:
            self.sent.append(Sent(output_id, data, dict(metadata or {})))
            self._changed.notify_all()

    def node_config(self) -> dict[str, Any]:
        return self._config

    def restart_count(self) -> int:
        return self._restart_count

    def dataflow_id(self) -> str:
        return "fake"


def event(port: str, value: Any, **metadata: Any) -> dict[str, Any]:
    """An input event: `value` is an Arrow array, samples, a text, or a number."""
    return {"type": "INPUT", "id": port, "value": _as_arrow(value), "metadata": metadata}


def _as_arrow(value: Any) -> Any:
    if isinstance(value, str):
        return pa.array([value])
    if isinstance(value, int):
        return pa.array([value], pa.int64())
    return pa.array(value) if isinstance(value, np.ndarray) else value


def message_event(message: Message) -> dict[str, Any]:
    """The input event that this message arrives as."""
    value, metadata = arrow.to_arrow(message)
    return {"type": "INPUT", "id": message.port, "value": value, "metadata": metadata}


def closed(port: str) -> dict[str, Any]:
    """The event that says that an input's producer has gone."""
    return {"type": "INPUT_CLOSED", "id": port}


def stop() -> dict[str, Any]:
    """The event that dora sends when the dataflow is stopped."""
    return {"type": "STOP", "id": "MANUAL"}


def silence(ms: float, rate_hz: int = SOURCE_RATE_HZ) -> NDArray[np.float32]:
    """float32 zeros."""
    return np.zeros(round(ms * rate_hz / 1000), np.float32)


def tone(ms: float, hz: float = 440, rate_hz: int = SOURCE_RATE_HZ, level: float = 0.5) -> NDArray[np.float32]:
    """A float32 sine of the given level."""
    n = np.arange(round(ms * rate_hz / 1000))
    return (level * np.sin(2 * math.pi * hz * n / rate_hz)).astype(np.float32)
