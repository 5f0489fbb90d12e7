"""A session of the llm node, asked in requests: what comes of each, its spoken sound included."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dora_voice.audio import Samples
from dora_voice.messages import Audio, Control, Message, Played, Text
from dora_voice_gateway.bridge import Bridge, Lost
from dora_voice_gateway.errors import ClientError
from dora_voice_session import requests
from dora_voice_session.requests import Result
from dora_voice_session.schema import StreamingResponse

REPORT_SAMPLES = 2_400
"""What was heard is reported every 100 ms of sound."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What follows of a reply: text, or sound at 24 kHz."""

    text: str = ""
    samples: Samples | None = None


@dataclass(slots=True, eq=False)
class Asked:
    """A request that is under way, and how much of its spoken reply was taken."""

    segment_id: int
    come: asyncio.Queue[Audio | Result | ClientError] = field(default_factory=asyncio.Queue)
    is_stopped: bool = False
    samples: int = 0
    text_end: int = 0
    reported_samples: int = 0


class LlmSession:
    """Nodes that crash, and results that don't come for `timeout_s`, raise ClientError, and so do refusals."""

    def __init__(self, bridge: Bridge, kind: str, timeout_s: float) -> None:
        self._line = bridge.open(kind, self._receive)
        self._timeout_s = timeout_s
        self._last_segment = 0
        self._asked: dict[int, Asked] = {}

    def close(self) -> None:
        self._line.close()

    async def ask(self, kind: str, **fields: Any) -> Result:
        """What comes of a request that has one result."""
        asked = self._send(kind, fields)
        try:
            while True:
                result = await self._next(asked)
                if not isinstance(result, Audio | requests.Chunk):
                    return result
        finally:
            del self._asked[asked.segment_id]

    async def answer(
        self, kind: str, *, speaks: bool, **fields: Any
    ) -> AsyncGenerator[Delta | StreamingResponse, None]:
        """Pieces of a reply, at last all that is known of it. What was taken counts as heard. Closing it cuts it."""
        asked = self._send(kind, fields)
        response, is_spoken = None, not speaks
        try:
            while response is None or not (is_spoken or asked.is_stopped):
                made = await self._next(asked)
                if isinstance(made, requests.Chunk) and made.chunk.text_delta:
                    yield Delta(made.chunk.text_delta)
                elif isinstance(made, requests.Responded):
                    response = made.response
                elif isinstance(made, Audio):
                    if made.error:
                        raise ClientError("failed", f"the reply could not be spoken: {made.error}")
                    if made.samples.size and not asked.is_stopped:
                        yield Delta(samples=made.samples)
                        self._heard(asked, made)
                    is_spoken = made.fin
            yield response
        finally:
            del self._asked[asked.segment_id]
            if speaks:
                self._report(asked, fin=True)
            if response is None or not is_spoken:
                self._cut(asked)

    async def stop(self) -> None:
        """The running reply ends where it is."""
        self.cut_short()
        with suppress(ClientError):
            await self.ask("stop")

    def cut_short(self) -> None:
        """The running reply will be ended by what is asked next."""
        for asked in self._asked.values():
            asked.is_stopped = True

    def _send(self, kind: str, fields: dict[str, Any]) -> Asked:
        self._last_segment += 1
        asked = self._asked[self._last_segment] = Asked(self._last_segment)
        document = {"type": kind, "request_id": str(asked.segment_id), **fields}
        if kind not in WITH_MESSAGES:
            document["session_id"] = self._line.session_id
        else:
            document["request"] = {**document["request"], "session_id": self._line.session_id}
        self._line.send(Text, port="request", segment_id=asked.segment_id, text=json.dumps(document), fin=True)
        return asked

    async def _next(self, asked: Asked) -> Audio | Result:
        try:
            made = await asyncio.wait_for(asked.come.get(), self._timeout_s)
        except TimeoutError:
            raise ClientError("timeout", f"nothing has come for REQUEST_S={self._timeout_s:g}") from None
        if isinstance(made, ClientError):
            raise made
        if isinstance(made, requests.Failed):
            raise ClientError(made.code, made.error)
        return made

    def _heard(self, asked: Asked, audio: Audio) -> None:
        asked.samples += audio.samples.size
        asked.text_end = max(asked.text_end, audio.text_end or 0)
        if asked.samples - asked.reported_samples >= REPORT_SAMPLES:
            self._report(asked)

    def _report(self, asked: Asked, *, fin: bool = False) -> None:
        asked.reported_samples = asked.samples
        self._line.send(
            Played,
            port="played",
            segment_id=asked.segment_id,
            samples=asked.samples,
            text_end=asked.text_end,
            fin=fin,
        )

    def _cut(self, asked: Asked) -> None:
        """Nothing more of this is made or spoken. What was asked since lives on."""
        later = asked.segment_id + 1
        self._line.send(Control, port="client_control", verb="flush", segment_id=later, flush=True)

    def _receive(self, message: Message | Lost) -> None:
        if isinstance(message, Lost):
            if who := {"result": "llm", "reply_audio": "tts"}.get(message.port):
                for asked in self._asked.values():
                    asked.come.put_nowait(ClientError("unavailable", f"the node {who} crashed: expected another try"))
            return
        asked = self._asked.get(message.segment_id or 0)
        if asked is None:
            return
        if isinstance(message, Audio):
            asked.come.put_nowait(message)
        elif isinstance(message, Text) and message.port == "result" and not message.error:
            asked.come.put_nowait(requests.RESULT.validate_json(message.text))


WITH_MESSAGES = ("prefill", "edit", "complete")
