"""Connects a stage to dora. The only module that imports it.

Two threads: the pump does nothing but `next()` and hand over to the intake, so that dora's own queues
stay empty; the main thread runs the stage, and is woken by the pump.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from threading import TIMEOUT_MAX
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar, cast

from dora_voice import arrow
from dora_voice.config import ConfigError, SetupError, from_env
from dora_voice.intake import Intake
from dora_voice.json_log import log_as_dora
from dora_voice.messages import Message
from dora_voice.scheduler import Scheduler
from dora_voice.stage import Ports, Stage, Surroundings

log = logging.getLogger("dora_voice.runtime")

LONGEST_STOP_S = 1.0
PUMP_LOOKS_UP_S = 0.1
QUIET_S = 0.3
"""Inputs that are closed have delivered all that they sent when nothing has come for this time."""
C = TypeVar("C")


class Node(Protocol):
    """The part of `dora.Node` that the runtime uses; a mocked node may have no more than these two."""

    def next(self, timeout: float | None = None) -> dict[str, Any] | None: ...

    def send_output(self, output_id: str, data: Any, metadata: dict[str, Any] | None = None) -> None: ...


def serve(build: Callable[[C], Stage], config_type: type[C], ports: Ports, node: Node | None = None) -> None:
    """A node's whole life: settings from the environment, models loaded, connected, run to the end.

    With a `node` that one is used instead of connecting to dora. Exits with 2 for a setting that can't
    be used, and with 1 for something that isn't installed or a stage that broke.
    """
    if "DORA_NODE_CONFIG" in os.environ:
        log_as_dora()
        _share_ctrl_c(True)
    try:
        stage = build(from_env(config_type))
    except ConfigError as error:
        _exit(2, str(error))
    except SetupError as error:
        _exit(1, str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    run(stage, ports, node or _connect())


def run(stage: Stage, ports: Ports, node: Node) -> None:
    """Runs `stage` until its inputs have ended and all is done, or the dataflow is stopped."""
    wiring = _wiring(node, ports)
    if unknown := wiring.producers.keys() - ports.inputs.keys():
        inputs = ", ".join(ports.inputs)
        _exit(2, f"the dataflow wires input {', '.join(sorted(unknown))}: this node expects {inputs}")
    woken, ended = threading.Event(), threading.Event()
    own_crash = f"restarted: node {_own_id()} crashed" if wiring.restarts else ""
    intake = Intake(ports, wiring.producers, time.monotonic, woken.set, own_crash=own_crash)
    surroundings = Surroundings(
        time.monotonic, frozenset(wiring.producers), wiring.outputs, wiring.restarts, _run_name(node), intake.nudge
    )

    def send(message: Message) -> None:
        if message.port not in ports.outputs:
            raise ValueError(f"the stage sent to {message.port!r}: expected one of {', '.join(ports.outputs)}")
        if message.port in wiring.outputs:
            node.send_output(message.port, *arrow.to_arrow(message))

    scheduler = Scheduler(stage, ports, intake, surroundings, send)
    pump = Pump(node, intake, wiring.producers, ended)
    pump.start()
    try:
        _work(scheduler, intake, ports, pump, woken)
        if intake.stopping:
            _drain(scheduler, ports, pump)
    finally:
        scheduler.close()
        # Python may not end while a thread is inside of dora: that crashes.
        ended.set()
        pump.join(LONGEST_STOP_S)
        if counts := intake.counts + Counter(late=scheduler.stale):
            log.info("not used: %s", ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    if pump.error is not None:
        raise pump.error


class Pump(threading.Thread):
    """Receives, and nothing else. Without it a node would be deaf, so an error here ends the node."""

    def __init__(self, node: Node, intake: Intake, producers: Mapping[str, str], ended: threading.Event) -> None:
        super().__init__(name="pump", daemon=True)
        self.error: Exception | None = None
        self._node = node
        self._intake = intake
        self._producers = producers
        self._ended = ended

    def run(self) -> None:
        try:
            # Feedback may still come when the node has ended: after a time-out, an event of type ERROR, it looks.
            while not self._ended.is_set() and (event := self._node.next(timeout=PUMP_LOOKS_UP_S)) is not None:
                self._take(event)
        except Exception as error:
            self.error = error
            self._intake.stop()
        finally:
            self._intake.close()

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, name = event.get("type"), str(event.get("id", ""))
        if kind == "INPUT":
            self._intake.receive(name, event["value"], event.get("metadata") or {})
        elif kind == "INPUT_CLOSED":
            self._intake.closed(name)
        elif kind in ("NODE_RESTARTED", "NODE_FAILED"):
            log.warning("node %s crashed", name)
            self._intake.restarted([port for port, producer in self._producers.items() if producer == name], name)
        elif kind == "STOP" and name != "ALL_INPUTS_CLOSED":
            self._intake.stop()


def _work(scheduler: Scheduler, intake: Intake, ports: Ports, pump: Pump, woken: threading.Event) -> None:
    """Steps until everything is done. A source is done when its `run` is, others when their inputs are."""
    is_source = ports.feedback >= ports.inputs.keys()
    are_sessions_finished = False
    while True:
        woken.clear()
        if intake.stopping:
            return
        # What came in after this step has woken us again: nothing is decided before it has been looked at.
        if scheduler.step() or woken.is_set():
            continue
        wait_s = min(scheduler.next_wake_s() - time.monotonic(), TIMEOUT_MAX)
        is_done = not scheduler.is_running if is_source else not intake.is_open and scheduler.is_idle
        if is_done and not is_source and pump.is_alive():
            # dora says that inputs are closed before it has delivered all that they sent.
            quiet_s = time.monotonic() - intake.last_news_s
            is_done, wait_s = quiet_s >= QUIET_S, min(wait_s, QUIET_S - quiet_s)
        if is_done and not are_sessions_finished:
            scheduler.finish_sessions()
            are_sessions_finished = True
        elif is_done or (wait_s == TIMEOUT_MAX and not pump.is_alive()):
            return
        else:
            woken.wait(max(0.0, wait_s))


def _drain(scheduler: Scheduler, ports: Ports, pump: Pump) -> None:
    """Inputs that STOP overtook still come. A stage that writes down what happened takes them in."""
    deadline_s = time.monotonic() + LONGEST_STOP_S
    while time.monotonic() < deadline_s:
        if not (ports.records and scheduler.step()):
            if not pump.is_alive():
                return
            pump.join(0.01)


def _connect() -> Node:
    import dora

    # From here on dora tells us to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _share_ctrl_c(False)
    try:
        return cast(Node, dora.Node())
    except RuntimeError as error:
        _exit(1, f"can't connect to dora: {error}")


def _share_ctrl_c(shared: bool) -> None:
    """dora's STOP doesn't reach a node that is still loading its model, but the user's Ctrl-C can.

    dora starts a node in a process group of its own; until it is connected it belongs in dora's.
    """
    try:
        os.setpgid(0, os.getpgid(os.getppid()) if shared else 0)
    except OSError as error:
        log.debug("process group not changed: %s", error)


class Wiring(NamedTuple):
    """How the node is connected in this dataflow."""

    producers: dict[str, str]
    """Wired input → the node that feeds it."""
    outputs: frozenset[str]
    """Outputs that are part of the dataflow; what is sent to others goes nowhere."""
    restarts: int


def _wiring(node: Any, ports: Ports) -> Wiring:
    """What the node tells; everything connected, to nowhere, where it tells nothing."""
    restarts = node.restart_count() if hasattr(node, "restart_count") else 0
    config = node.node_config() if hasattr(node, "node_config") else {}
    if not config:
        return Wiring(dict.fromkeys(ports.inputs, ""), frozenset(ports.outputs), restarts)
    sources = {port: edge["source"] if isinstance(edge, dict) else edge for port, edge in config["inputs"].items()}
    producers = {port: str(source).split("/")[0] for port, source in sources.items()}
    return Wiring(producers, frozenset(config["outputs"]), restarts)


def _run_name(node: Any) -> str:
    """The dataflow's id, new with every run, and the node's own."""
    return f"{node.dataflow_id()}-{own_id}" if (own_id := _own_id()) else ""


def _own_id() -> str:
    """What this node is called in its dataflow; empty where there is no dora."""
    own_id = re.search(r"^node_id: (.+)$", os.environ.get("DORA_NODE_CONFIG", ""), re.MULTILINE)
    return own_id[1].strip() if own_id else ""


def _exit(code: int, why: str) -> NoReturn:
    log.error("%s", why)
    sys.exit(code)
