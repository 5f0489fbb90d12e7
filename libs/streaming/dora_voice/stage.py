"""What a stage is: the object that a node's work is written as, and that the runtime drives.

A stage sees messages only: no metadata, no dora. It runs on one thread. Between two yields the
runtime looks after flushes, other sessions and control messages, so at most 30 ms of compute
belong between two yields. When the segment that is being processed dies, the generator is closed
at its current yield: `with` and `finally` put the stage's state right.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dora_voice.messages import SOURCE_RATE_HZ, Message


@dataclass(frozen=True, slots=True)
class Wait:
    """Yielded by a generator that can't go on: resume it when the stage has gone on with something else.

    `at_most_ms` also resumes it after that time. The yield returns the milliseconds that were
    left then, 0.0 when the time ran out (infinity without a limit).
    """

    at_most_ms: float | None = None


Work = Generator[Message | Wait | None, Any, None]
"""What `process` returns: messages to send, `None` for a checkpoint, `Wait` to be resumed later."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The wiring that a stage expects.

    inputs: input id → the message type that it carries.
    outputs: output id → the message type that it carries.
    reply: the output on which every segment ends with exactly one `fin`, also when the stage fails (then every other
        output that carries fragments gets one, too);
        None for a stage whose segments don't end with its own work (speaker, sink, source).
    feedback: inputs that never end a node by closing, because they come from further down.
    ends_with: the inputs whose `finish` ends a session here; the first of them that is wired counts.
    continuous: inputs that know no segments (a microphone's audio): all of it is segment 0, and never stale.
    concurrent: inputs whose messages are each a segment of their own, unless they say otherwise, and don't wait for
        each other: the stage puts their work in order itself.
    unordered: inputs whose fragments the stage puts together by seq itself, in any order of arrival.
    rate_hz: the sample rate of audio that doesn't say its own.
    remembered: inputs that still count when their segment was flushed: what the user said stays said.
    continued: inputs that still count when their segment was dropped: the next one may continue it.
    records: the stage writes down what happened: it also gets what came before a flush and was still queued.
    """

    inputs: Mapping[str, type[Message]]
    outputs: Mapping[str, type[Message]]
    reply: str | None = None
    feedback: frozenset[str] = frozenset()
    ends_with: tuple[str, ...] = ()
    continuous: frozenset[str] = frozenset()
    concurrent: frozenset[str] = frozenset()
    unordered: frozenset[str] = frozenset()
    rate_hz: int = SOURCE_RATE_HZ
    remembered: frozenset[str] = frozenset()
    continued: frozenset[str] = frozenset()
    records: bool = False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a stage may know of the run that it is part of."""

    clock: Callable[[], float]
    """Seconds, monotonic; the sample clock of a test graph."""
    wired: frozenset[str] = field(default_factory=frozenset)
    """Inputs that are connected in this dataflow."""
    wired_outputs: frozenset[str] = field(default_factory=frozenset)
    """Outputs that this dataflow declares; dora doesn't tell whether somebody listens."""
    restarts: int = 0
    """How often this node was restarted after a crash."""
    run: str = ""
    """Names this run of the dataflow and this node in it, the same after a restart; empty where there is no dora."""
    wake: Callable[[], None] = lambda: None
    """Resumes what waits in the stage. Other threads may call it, and nothing else of the runtime."""


class Stage(Protocol):
    """The one method every stage has. These are optional, found by name:

    started(surroundings: Surroundings) -> None      before the first message
    run() -> Work                                    for stages that act without input; ends the node when it
                                                     returns and no input but feedback is wired
    failed(segment: Segment) -> None                 this segment ended with an error, here or before
    late(message: Message) -> None                   a message on a `remembered` input, of a segment that was flushed,
                                                     or on a `continued` one, of a segment that was dropped
    lost(port: str, for_good: bool) -> None          who feeds this feedback input crashed, or is gone for good;
                                                     a stage that `records` is told of a crash on any input
    flushed(segment: Segment) -> None                every older segment of this session died
    dropped(segment: Segment) -> None                exactly this segment died and never happened
    finish(session_id: str) -> Work                  the session's last message has passed: finish what is left
    ended(session_id: str) -> None                   forget the session
    close() -> None                                  the process is about to exit
    """

    def process(self, message: Message) -> Work | None: ...
