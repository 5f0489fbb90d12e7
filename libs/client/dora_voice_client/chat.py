"""A client of the gateway's /ws/chat."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

REPLY_RATE_HZ = 24_000


class ChatError(Exception):
    """The gateway could not serve a request, or can't be reached. `code` is the gateway's, or "disconnected"."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True, slots=True)
class Queued:
    """All places are busy."""

    position: int


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The messages were read. Counts of tokens."""

    input_tokens: int
    reused_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What follows of the reply: text, or mono float32 little-endian PCM at 24 kHz."""

    text: str = ""
    audio: bytes = b""


@dataclass(frozen=True, slots=True)
class Done:
    text: str
    input_tokens: int
    generated_tokens: int
    stopped: bool


class ChatClient:
    """`url`: of the gateway, without a path. Raises ChatError if it can't be reached, or doesn't let us in."""

    def __init__(self, url: str = "ws://127.0.0.1:8765", token: str = "") -> None:
        self._url = f"{url.rstrip('/')}/ws/chat"
        # In UTF-8, which headers aren't made for.
        self._headers = {"Authorization": f"Bearer {token}".encode().decode("latin-1")} if token else {}
        self._socket: ClientConnection | None = None

    async def __aenter__(self) -> Self:
        try:
            self._socket = await connect(self._url, additional_headers=self._headers, max_size=None)
        except (OSError, InvalidHandshake, InvalidURI) as error:
            raise ChatError("disconnected", f"{self._url}: {error}") from error
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._connected.close()

    async def ask(
        self, messages: Sequence[Mapping[str, Any]], *, speak: bool = False, **fields: Any
    ) -> AsyncIterator[Queued | Prefilled | Delta | Done]:
        """The answer to a whole conversation, piece by piece; the last is Done."""
        await self._send({"messages": messages, "streaming": True, "tts": {"enabled": speak}, **fields})
        while True:
            piece = _piece(await self._receive())
            yield piece
            if isinstance(piece, Done):
                return

    async def stop(self) -> None:
        """The running reply ends where it is."""
        await self._send({"type": "stop"})

    @property
    def _connected(self) -> ClientConnection:
        if self._socket is None:
            raise RuntimeError("not connected: expected `async with ChatClient(…) as chat`")
        return self._socket

    async def _send(self, document: Mapping[str, Any]) -> None:
        try:
            await self._connected.send(json.dumps(document))
        except ConnectionClosed as closed:
            raise _disconnected(closed) from closed

    async def _receive(self) -> dict[str, Any]:
        try:
            return json.loads(await self._connected.recv())
        except ConnectionClosed as closed:
            raise _disconnected(closed) from closed


def _piece(document: Mapping[str, Any]) -> Queued | Prefilled | Delta | Done:
    match document["type"]:
        case "queued":
            return Queued(document["position"])
        case "prefill_done":
            return Prefilled(document["input_tokens"], document["reused_tokens"])
        case "chunk":
            return Delta(document.get("text_delta", ""), base64.b64decode(document.get("audio_data", "")))
        case "done":
            return Done(*(document[name] for name in ("text", "input_tokens", "generated_tokens", "stopped")))
        case "error":
            raise ChatError(document["code"], document["error"])
        case other:
            raise ChatError("bad_answer", f"type={other!r}: expected a message of /ws/chat")


def _disconnected(closed: ConnectionClosed) -> ChatError:
    why = closed.rcvd.reason or f"code {closed.rcvd.code}" if closed.rcvd else "the connection broke"
    return ChatError("disconnected", why)
