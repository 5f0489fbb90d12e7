"""One client's WebSocket: read all the time, written to with a limit, closed with a code."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from dora_voice_gateway.errors import GoneError
from dora_voice_session.schema import Document

SLOW_S = 10.0
"""A client that takes nothing for so long is not waited for."""

LINGER_S = 10.0
"""So long a client may take to take what was sent before the close."""
LONGEST_REASON = 123
"""Bytes, as RFC 6455 has it."""

NORMAL, GOING_AWAY, POLICY, FAULT, TRY_LATER = 1000, 1001, 1008, 1011, 1013
"""Close codes of RFC 6455."""


class Protocol(WebSocketsSansIOProtocol):
    """A client that reads nothing is closed, too, and what was written for it is given up at last."""

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "websocket.close":
            # Behind what waits to be taken, without waiting for that.
            self.writable.set()
            self.loop.call_later(LINGER_S, self.transport.abort)
        await super().send(message)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()


class Connection:
    def __init__(self, socket: WebSocket, idle_s: float) -> None:
        self._socket = socket
        self._idle_s = idle_s
        self._sending = asyncio.Lock()

    async def receive(self) -> str | bytes:
        """The client's next message. Raises GoneError when there are no more."""
        try:
            event = await asyncio.wait_for(self._socket.receive(), self._idle_s)
        except TimeoutError:
            await self.close(NORMAL, f"nothing was said for {self._idle_s:g} s")
            raise GoneError from None
        except RuntimeError as error:
            raise GoneError from error
        if event["type"] == "websocket.disconnect":
            raise GoneError
        text = event.get("text")
        return text if text is not None else event["bytes"]

    async def send(self, document: Document) -> None:
        await self._send(document.model_dump_json(exclude_none=True))

    async def send_bytes(self, data: bytes) -> None:
        await self._send(data)

    async def close(self, code: int, reason: str = "") -> None:
        # A client that has gone, or reads nothing, is not waited for.
        with suppress(RuntimeError, WebSocketDisconnect, TimeoutError, OSError):
            if self._socket.application_state is WebSocketState.CONNECTED:
                await asyncio.wait_for(self._socket.close(code, _short(reason)), 1.0)

    async def _send(self, data: str | bytes) -> None:
        try:
            async with asyncio.timeout(SLOW_S), self._sending:
                await (self._socket.send_text(data) if isinstance(data, str) else self._socket.send_bytes(data))
        except TimeoutError:
            await self.close(TRY_LATER, f"too slow: nothing was read for {SLOW_S:g} s")
            raise GoneError from None
        except (RuntimeError, WebSocketDisconnect, OSError) as error:
            raise GoneError from error


def _short(reason: str) -> str:
    return reason.encode()[:LONGEST_REASON].decode(errors="ignore")
