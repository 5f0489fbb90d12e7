"""Between the two threads of the gateway: the stage's, and the one on which clients are served.

Each session of a client is a line. What comes for it is given to its receiver, on the clients' thread.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dora_voice.messages import Control, Message
from dora_voice_gateway.presence import Presence

ANOTHER_END_S = 3.0
"""By then has arrived what was on its way between the nodes when a session ended."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Who feeds this input crashed: what it was working on does not come."""

    port: str
    for_good: bool = False


Receiver = Callable[[Message | Lost], None]


class Line:
    """One session of the dataflow, that belongs to one client. Messages are sent in its name."""

    def __init__(self, bridge: Bridge, session_id: str, receive: Receiver) -> None:
        self.session_id = session_id
        self._bridge = bridge
        self.receive = receive

    def send(self, kind: type[Message], **fields: Any) -> None:
        self._bridge.send(kind(session_id=self.session_id, **fields))

    def close(self) -> None:
        """Every node forgets the session."""
        self._bridge.close(self.session_id)


class Bridge:
    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lines: dict[str, Line] = {}
        self._outgoing: deque[Message] = deque()
        self.presence = Presence(self)

    # On the stage's thread

    def take(self) -> Message | None:
        """The next message that a client's session sends; None if there is none."""
        return self._outgoing.popleft() if self._outgoing else None

    def deliver(self, message: Message) -> None:
        self._call(self._deliver, message)

    def lose(self, port: str, for_good: bool = False) -> None:
        self._call(self._lose, Lost(port, for_good))

    # On the clients' thread

    def begin(self) -> None:
        """From now on this thread's loop takes what comes."""
        self._loop = asyncio.get_running_loop()

    def end(self) -> None:
        self._loop = None

    def open(self, kind: str, receive: Receiver) -> Line:
        """A session that nobody can guess the name of, or choose it."""
        line = Line(self, f"{kind}-{secrets.token_hex(8)}", receive)
        self._lines[line.session_id] = line
        return line

    @property
    def open_lines(self) -> int:
        return len(self._lines)

    def send(self, message: Message) -> None:
        self._outgoing.append(message)
        self.wake()

    def close(self, session_id: str) -> None:
        if self._lines.pop(session_id, None) is None:
            return
        self._end(session_id)
        asyncio.get_running_loop().call_later(ANOTHER_END_S, self._end, session_id)

    def _end(self, session_id: str) -> None:
        self.send(Control(port="client_control", verb="end", session_id=session_id, segment_id=0))

    def _deliver(self, message: Message) -> None:
        if line := self._lines.get(message.session_id or ""):
            line.receive(message)

    def _lose(self, lost: Lost) -> None:
        self.presence.lost(lost.port, lost.for_good)
        for line in list(self._lines.values()):
            line.receive(lost)

    def _call(self, act: Callable[[Any], None], what: Any) -> None:
        # Before the clients' thread runs, and after it has ended, nobody waits for anything.
        with suppress(RuntimeError):
            if (loop := self._loop) is not None:
                loop.call_soon_threadsafe(act, what)
