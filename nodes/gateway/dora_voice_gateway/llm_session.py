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
from dora_voice_gateway.presence import CRASHED, WHO
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


@dataclass(frozen=True, slots=True)
class Stopped:
    """A request was cut short: whoever waits for what comes of it looks up."""


@dataclass(slots=True, eq=False)
class Asked:
    """A request that is under way, and how much of its spoken reply was taken."""

    segment_id: int
    speaks: bool
    come: asyncio.Queue[Audio | Result | Stopped | ClientError] = field(default_factory=asyncio.Queue)
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
        self._presence = bridge.presence
        self._waiting: asyncio.Timeout | None = None
        """Of a reply that waits for the nodes that it needs."""

    def close(self) -> None:
        self._line.close()

    async def ask(self, kind: str, **fields: Any) -> Result:
        """What comes of a request that has one result."""
        await self._presence.wait("llm", timeout_s=self._timeout_s)
        asked = self._send(kind, fields, speaks=False)
        try:
            while True:
                result = await self._next(asked)
                if not isinstance(result, Audio | requests.Chunk | Stopped):
                    return result
        finally:
            del self._asked[asked.segment_id]

    async def answer(
        self, kind: str, *, speaks: bool, **fields: Any
    ) -> AsyncGenerator[Delta | StreamingResponse, None]:
        """Pieces of a reply, at last all that is known of it. What was taken counts as heard. Closing it cuts it."""
        await self._until_there(*(["llm", "tts"] if speaks else ["llm"]))
        asked = self._send(kind, fields, speaks=speaks)
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
            if not is_spoken:
                # Its text may have been complete already.
                response = response.model_copy(update={"finish_reason": "stopped"})
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
        """The running reply will be ended by what is asked next; one that waits ends now."""
        if self._waiting is not None:
            self._waiting.reschedule(0)
        for asked in self._asked.values():
            asked.is_stopped = True
            asked.come.put_nowait(Stopped())

    async def _until_there(self, *needed: str) -> None:
        try:
            async with asyncio.timeout(None) as self._waiting:
                await self._presence.wait(*needed, timeout_s=self._timeout_s)
        except TimeoutError:
            raise ClientError("stopped", "it was stopped before it began") from None
        finally:
            self._waiting = None

    def _send(self, kind: str, fields: dict[str, Any], *, speaks: bool) -> Asked:
        self._last_segment += 1
        asked = self._asked[self._last_segment] = Asked(self._last_segment, speaks)
        document = {"type": kind, "request_id": str(asked.segment_id), **fields}
        if kind not in WITH_MESSAGES:
            document["session_id"] = self._line.session_id
        else:
            document["request"] = {**document["request"], "session_id": self._line.session_id}
        self._line.send(Text, port="request", segment_id=asked.segment_id, text=json.dumps(document), fin=True)
        return asked

    async def _next(self, asked: Asked) -> Audio | Result | Stopped:
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
            self._lose(message.port)
            return
        asked = self._asked.get(message.segment_id or 0)
        if asked is None or (message.error or "").startswith(CRASHED):
            return
        if isinstance(message, Audio):
            asked.come.put_nowait(message)
        elif isinstance(message, Text) and message.port == "result":
            asked.come.put_nowait(self._result(message))

    def _lose(self, port: str) -> None:
        who = WHO.get(port)
        for asked in self._asked.values():
            if who == "llm" or (who == "tts" and asked.speaks):
                asked.come.put_nowait(ClientError("unavailable", f"the node {who} crashed: expected another try"))

    def _result(self, message: Text) -> Result | ClientError:
        if message.error:
            return ClientError("failed", f"the request could not be served: {message.error}")
        # Clients call it by another name, and nobody else has to know this one.
        return requests.RESULT.validate_json(message.text.replace(f"session {self._line.session_id}", "the session"))


WITH_MESSAGES = ("prefill", "edit", "complete")
