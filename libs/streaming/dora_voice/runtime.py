"""Connects a stage to dora. The only module that imports it.

Two threads: the pump does nothing but `next()` and hand over to the intake, so that dora's own queues
stay empty; the main thread runs the stage, and is woken by the pump.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol, TypeVar, cast

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
    woken, ended = threading.Event(), threading.Event()
    producers = _producers(node, ports)
    surroundings = Surroundings(time.monotonic, frozenset(producers), _restarts(node))
    intake = Intake(ports, producers, surroundings.clock, woken.set)
    outputs = _outputs(node, ports)

    def send(message: Message) -> None:
        if message.port in outputs:
            node.send_output(message.port, *arrow.to_arrow(message))

    scheduler = Scheduler(stage, ports, intake, surroundings, send)
    pump = threading.Thread(target=_pump, args=(node, intake, producers, ended), name="pump", daemon=True)
    pump.start()
    try:
        _work(scheduler, intake, ports, pump, woken)
        _drain(scheduler, ports, pump)
    finally:
        scheduler.close()
        # Python may not end while a thread is inside of dora: that crashes.
        ended.set()
        pump.join(LONGEST_STOP_S)
        if intake.counts:
            log.info("not used: %s", ", ".join(f"{count} {what}" for what, count in sorted(intake.counts.items())))


def _pump(node: Node, intake: Intake, producers: Mapping[str, str], ended: threading.Event) -> None:
    """Feedback may still come when the node has ended; after a time-out, an event of type ERROR, it looks."""
    while not ended.is_set() and (event := node.next(timeout=PUMP_LOOKS_UP_S)) is not None:
        kind, name = event.get("type"), str(event.get("id", ""))
        if kind == "INPUT":
            intake.receive(name, event["value"], event.get("metadata") or {})
        elif kind == "INPUT_CLOSED":
            intake.closed(name)
        elif kind in ("NODE_RESTARTED", "NODE_FAILED"):
            log.warning("node %s crashed", name)
            intake.restarted({port for port, producer in producers.items() if producer == name}, name)
        elif kind == "STOP" and name != "ALL_INPUTS_CLOSED":
            intake.stop()
    intake.close()


def _work(scheduler: Scheduler, intake: Intake, ports: Ports, pump: threading.Thread, woken: threading.Event) -> None:
    """Steps until everything is done. A source is done when its `run` is, others when their inputs are."""
    is_source = ports.feedback >= ports.inputs.keys()
    are_sessions_finished = False
    while not intake.stopping:
        woken.clear()
        # What came in after this step has woken us again: nothing is decided before it has been looked at.
        if scheduler.step() or woken.is_set():
            continue
        is_done = not scheduler.is_running if is_source else not intake.is_open and scheduler.is_idle
        wake_s = scheduler.next_wake_s()
        if is_done and not are_sessions_finished:
            scheduler.finish_sessions()
            are_sessions_finished = True
        elif is_done or (wake_s == math.inf and not pump.is_alive()):
            return
        else:
            woken.wait(None if wake_s == math.inf else max(0.0, wake_s - time.monotonic()))


def _drain(scheduler: Scheduler, ports: Ports, pump: threading.Thread) -> None:
    """Inputs that STOP overtook still come. A stage that makes nothing out of them takes them in."""
    deadline_s = time.monotonic() + LONGEST_STOP_S
    while pump.is_alive() and time.monotonic() < deadline_s:
        if ports.outputs or not scheduler.step():
            pump.join(0.01)
    while not ports.outputs and scheduler.step() and time.monotonic() < deadline_s:
        pass


def _connect() -> Node:
    import dora

    try:
        node = cast(Node, dora.Node())
    except KeyboardInterrupt:
        sys.exit(130)
    # From here on dora tells us to stop.
    _share_ctrl_c(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return node


def _share_ctrl_c(shared: bool) -> None:
    """dora's STOP doesn't reach a node that is still loading its model, but the user's Ctrl-C can.

    dora starts a node in a process group of its own; until it is connected it belongs in dora's.
    """
    try:
        os.setpgid(0, os.getpgid(os.getppid()) if shared else 0)
    except OSError as error:
        log.debug("process group not changed: %s", error)


def _producers(node: Node, ports: Ports) -> dict[str, str]:
    """Wired input → the node that feeds it; all inputs, from nowhere, where the node can't tell."""
    config = node.node_config() if hasattr(node, "node_config") else {}  # type: ignore[attr-defined]
    inputs = config.get("inputs") or dict.fromkeys(ports.inputs if not config else (), "")
    sources = {port: source["source"] if isinstance(source, dict) else source for port, source in inputs.items()}
    return {port: str(source).split("/")[0] for port, source in sources.items()}


def _outputs(node: Node, ports: Ports) -> set[str]:
    config = node.node_config() if hasattr(node, "node_config") else {}  # type: ignore[attr-defined]
    return set(config["outputs"]) if config else set(ports.outputs)


def _restarts(node: Node) -> int:
    return node.restart_count() if hasattr(node, "restart_count") else 0  # type: ignore[attr-defined]


def _exit(code: int, why: str) -> NoReturn:
    log.error("%s", why)
    sys.exit(code)
