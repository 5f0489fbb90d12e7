"""The gateway as a stage: passes on what clients send, and gives them what comes for them."""

from __future__ import annotations

from typing import Protocol

from dora_voice.messages import Message
from dora_voice.stage import Surroundings, Wait, Work
from dora_voice_gateway.bridge import Bridge


class Clients(Protocol):
    """Runs on threads of its own."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """Says goodbye to everybody, and returns when that is done."""
        ...


class GatewayStage:
    def __init__(self, bridge: Bridge, clients: Clients) -> None:
        self._bridge = bridge
        self._clients = clients

    def started(self, surroundings: Surroundings) -> None:
        self._bridge.wake = surroundings.wake
        self._clients.start()

    def process(self, message: Message) -> None:
        self._bridge.deliver(message)

    late = process

    def lost(self, port: str, for_good: bool) -> None:
        self._bridge.lose(port, for_good)

    def run(self) -> Work:
        while True:
            while (message := self._bridge.take()) is not None:
                yield message
            yield Wait()

    def close(self) -> None:
        self._clients.stop()
