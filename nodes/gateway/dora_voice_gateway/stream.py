"""/ws/stream: one conversation of the llm node, request by request; sound may come while it is said."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dora_voice.audio import Samples
from dora_voice_gateway import stream_protocol as protocol
from dora_voice_gateway.admission import FASTEST_SOUND, Rate
from dora_voice_gateway.connection import Connection
from dora_voice_gateway.content import content_of
from dora_voice_gateway.errors import ClientError
from dora_voice_gateway.gateway import Gateway, Measured
from dora_voice_gateway.listening import write_down
from dora_voice_gateway.live_speech import LiveSpeech
from dora_voice_gateway.parsing import parse, request_id_of
from dora_voice_gateway.side_by_side import side_by_side
from dora_voice_gateway.sound import Sound, pcm
from dora_voice_session import requests
from dora_voice_session.schema import (
    REPLY_RATE_HZ,
    ChatMessage,
    StreamingChunk,
    StreamingConfig,
    StreamingRequest,
    StreamingResponse,
)

MOST_WAITING = 64
"""Requests of one connection."""
CHUNK_UNIT_SAMPLES = REPLY_RATE_HZ * 40 // 1000
"""What `audio_token_chunk_size` counts."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """What the client has said live: 16 kHz mono. None: too many requests wait already."""

    samples: Samples | None
    session_id: str
    request_id: str | None
    type: str = "audio"


Computed = requests.Prefill | requests.Edit | requests.Generate | requests.Complete | requests.Settings | Utterance
"""What waits for those before it."""
Labelled = protocol.Client | Utterance


@dataclass(frozen=True, slots=True)
class Unread:
    """A message that is no request."""

    session_id: str | None
    request_id: str | None


async def serve(connection: Connection, gateway: Gateway) -> None:
    stream = Stream(connection, gateway)
    try:
        await side_by_side(stream.read(), stream.answer())
    finally:
        stream.close()


class Running:
    """The request that is served. It is stopped here until the llm node has it, and by that afterwards."""

    def __init__(self, request: Computed) -> None:
        self.request = request
        self.ended = asyncio.Event()
        """The client was told how."""
        self._preparing = asyncio.timeout(None)
        self._is_prepared = False
        self._stopped_by: str | None = None

    @asynccontextmanager
    async def until_stopped(self) -> AsyncIterator[None]:
        """Raises ClientError if it is stopped while it is prepared."""
        try:
            async with self._preparing:
                yield
        except TimeoutError:
            raise self._stopped from None
        finally:
            self._is_prepared = True

    def go_on(self) -> None:
        """From here on it isn't broken off. Raises ClientError if it was stopped."""
        self._is_prepared = True
        if self._stopped_by is not None:
            raise self._stopped

    def stop(self, by: str) -> None:
        self._stopped_by = by
        if not self._is_prepared:
            self._preparing.reschedule(asyncio.get_running_loop().time())

    @property
    def _stopped(self) -> ClientError:
        return ClientError("stopped", f"ended by {self._stopped_by} before it began")


class Stream:
    """The client's name for the session is a label: the dataflow knows it by another one."""

    def __init__(self, connection: Connection, gateway: Gateway) -> None:
        self._connection = connection
        self._gateway = gateway
        self._session = gateway.llm_session("stream")
        longest_s = gateway.config.audio_s
        # An utterance of AUDIO_S may come at once.
        sound_s = Rate(max(60 * FASTEST_SOUND, longest_s), time.monotonic)
        self._speech = LiveSpeech(gateway.bridge, longest_s, sound_s, self._ended)
        self._spoken: protocol.Audio | None = None
        """The last piece of what is said live."""
        self._label: str | None = None
        self._rate = gateway.request_rate()
        self._waiting: deque[Computed] = deque()
        self._news = asyncio.Event()
        self._running: Running | None = None
        self._streaming = StreamingConfig()
        """How the last request that said so wants to be answered."""

    def close(self) -> None:
        self._speech.close()
        self._session.close()

    async def read(self) -> None:
        """Takes what comes, also while a reply is made."""
        while True:
            message = await self._connection.receive()
            request: protocol.Client | None = None
            try:
                request = parse(protocol.CLIENT, message)
                self._check(request)
                await self._take(request)
            except ClientError as error:
                self._gateway.count_unread("stream", error)
                await self._fail(error, request or Unread(self._label, request_id_of(message)))
            except asyncio.CancelledError:
                if request is not None:
                    await self._close(request)
                raise

    async def answer(self) -> None:
        """What has to be computed, in order."""
        while True:
            while not self._waiting:
                self._news.clear()
                await self._news.wait()
            running = self._running = Running(self._waiting.popleft())
            try:
                with self._gateway.measured("stream", running.request.type) as measured:
                    async with running.until_stopped():
                        await self._compute(running, measured)
            except ClientError as error:
                await self._fail(error, running.request)
            except asyncio.CancelledError:
                await self._close(running.request, *self._waiting)
                raise
            finally:
                running.ended.set()

    def _check(self, request: protocol.Client) -> None:
        self._label = self._label or request.session_id
        if request.session_id != self._label:
            raise ClientError(
                "bad_request", f"session_id={request.session_id!r}: expected {self._label!r}, one for each connection"
            )
        if not isinstance(request, protocol.Audio) or request.is_last_chunk:
            self._rate.check()

    async def _take(self, request: protocol.Client) -> None:
        if isinstance(request, protocol.Audio):
            self._spoken = request
            self._speech.hear(request)
        elif isinstance(request, requests.Stop | requests.Rollback | requests.Reset | requests.End):
            await self._act(request)
        elif isinstance(request, requests.Recall):
            await self._pass_on(await self._session.ask("history"), request)
        elif isinstance(request, requests.Describe):
            await self._pass_on(await self._gateway.model(), request)
        elif len(self._waiting) >= MOST_WAITING:
            raise ClientError("busy", f"{MOST_WAITING} requests wait already")
        else:
            self._put(request)

    def _put(self, request: Computed) -> None:
        self._waiting.append(request)
        self._news.set()

    def _ended(self, samples: Samples) -> None:
        """The client has said something."""
        if (spoken := self._spoken) is not None:
            kept = samples if len(self._waiting) < MOST_WAITING else None
            self._put(Utterance(kept, spoken.session_id, spoken.request_id))

    async def _act(self, request: requests.Stop | requests.Rollback | requests.Reset | requests.End) -> None:
        """Ends what runs; what waits never begins. That is told first."""
        never_begun, running = list(self._waiting), self._running
        self._waiting.clear()
        if running is not None:
            running.stop(request.type)
        self._session.cut_short()
        for waiting in never_begun:
            await self._fail(ClientError("stopped", f"ended by {request.type} before it began"), waiting)
        try:
            if request.type == "stop":
                await self._session.stop()
                result: requests.Result = requests.Done(session_id="-")
            else:
                result = await self._session.ask(request.type)
        finally:
            if running is not None:
                await running.ended.wait()
        if request.type == "end":
            self._streaming = StreamingConfig()
        await self._pass_on(result, request)

    async def _compute(self, running: Running, measured: Measured) -> None:
        request = running.request

        async def tell(position: int) -> None:
            await self._connection.send(
                protocol.Queued(session_id=request.session_id, request_id=request.request_id, position=position)
            )

        async with self._gateway.places.take(tell):
            if isinstance(request, Utterance):
                await self._read_utterance(request, running)
            elif isinstance(request, requests.Generate):
                running.go_on()
                streaming = request.streaming or self._streaming
                generation = (
                    {}
                    if request.generation is None
                    else {"generation": request.generation.model_dump(exclude_unset=True)}
                )
                fields = {"streaming": _llm_streaming(streaming), **generation}
                await self._answer(request, streaming, measured, fields)
            elif isinstance(request, requests.Settings):
                running.go_on()
                settings = request.settings.model_dump(exclude_unset=True)
                await self._pass_on(await self._session.ask("session", settings=settings), request)
            else:
                is_told = "streaming" in request.request.model_fields_set
                streaming = request.request.streaming if is_told else self._streaming
                document = await self._request(request.request, streaming)
                running.go_on()
                if request.type == "complete":
                    await self._answer(request, streaming, measured, {"request": document})
                else:
                    result = await self._session.ask(request.type, request=document)
                    self._streaming = streaming
                    await self._pass_on(result, request)

    async def _request(self, request: StreamingRequest, streaming: StreamingConfig) -> dict[str, Any]:
        """What the llm node gets of it: sound is text there, and how a reply is delivered is done here."""
        content = await content_of(request.messages, self._gateway)
        document = request.model_dump(exclude_unset=True)
        document["messages"] = [message.model_dump() for message in content.messages]
        document["streaming"] = _llm_streaming(streaming)
        if content.has_film:
            # Its pictures and words have been brought together: the model has nothing else to do.
            document.pop("omni_mode", None)
        return document

    async def _read_utterance(self, utterance: Utterance, running: Running) -> None:
        if utterance.samples is None:
            raise ClientError("busy", f"{MOST_WAITING} requests wait already: the utterance is forgotten")
        text = await write_down(self._gateway.bridge, utterance.samples, self._gateway.config.request_s)
        running.go_on()
        await self._connection.send(
            protocol.Transcript(session_id=utterance.session_id, request_id=utterance.request_id, text=text)
        )
        if text:
            running.go_on()
            said = ChatMessage(role="user", content=text).model_dump()
            document = {"messages": [said], "is_last_chunk": True}
            await self._pass_on(await self._session.ask("prefill", request=document), utterance)

    async def _answer(
        self,
        request: requests.Generate | requests.Complete,
        streaming: StreamingConfig,
        measured: Measured,
        fields: dict[str, Any],
    ) -> None:
        speaks = streaming.generate_audio
        sends_chunks = request.type == "generate"
        sound = Sound(streaming.audio_token_chunk_size * CHUNK_UNIT_SAMPLES if sends_chunks else None)
        chunks = Chunks()
        response = StreamingResponse(session_id="-")
        async with aclosing(self._session.answer(request.type, speaks=speaks, **fields)) as reply:
            async for made in reply:
                measured.output()
                if isinstance(made, StreamingResponse):
                    response = made
                elif made.samples is not None:
                    for piece in sound.add(made.samples):
                        await self._pass_on(chunks.next(audio=piece), request)
                elif sends_chunks:
                    await self._pass_on(chunks.next(text=made.text), request)
        self._streaming = streaming
        rest = sound.rest()
        if sends_chunks:
            await self._pass_on(chunks.next(audio=rest if rest.size else None, is_final=True), request)
        self._gateway.count_tokens(response.usage)
        whole = response.model_copy(
            update={
                "session_id": request.session_id,
                "audio_data": pcm(rest) if speaks and not sends_chunks else None,
                "audio_duration_ms": sound.total_samples * 1000 / REPLY_RATE_HZ,
                "total_chunks": chunks.count,
                "total_duration_ms": measured.elapsed_s() * 1000,
            }
        )
        await self._pass_on(requests.Responded(session_id="-", response=whole), request)

    async def _pass_on(self, result: requests.Result, request: Labelled) -> None:
        """In the client's own words for the session and the request."""
        changed: dict[str, Any] = {"session_id": request.session_id, "request_id": request.request_id}
        if isinstance(result, requests.Prefilled):
            changed["result"] = result.result.model_copy(update={"session_id": request.session_id})
        await self._connection.send(result.model_copy(update=changed))

    async def _close(self, *unanswered: Labelled) -> None:
        """The server is being stopped, or the client has gone: then nobody is told."""
        if self._gateway.is_closing:
            for request in unanswered:
                await self._fail(ClientError("closing", "the server is being stopped"), request)

    async def _fail(self, error: ClientError, request: Labelled | Unread) -> None:
        await self._connection.send(
            protocol.Failed(
                session_id=request.session_id,
                request_id=request.request_id,
                code=error.code,
                error=str(error),
            )
        )


class Chunks:
    """Numbers the pieces of a reply, and says how long each took."""

    def __init__(self) -> None:
        self.count = 0
        self._at_s = time.monotonic()

    def next(self, *, text: str = "", audio: Samples | None = None, is_final: bool = False) -> requests.Chunk:
        before_s, self._at_s = self._at_s, time.monotonic()
        self.count += 1
        chunk = StreamingChunk(
            chunk_index=self.count - 1,
            text_delta=text,
            audio_data=None if audio is None else pcm(audio),
            is_final=is_final,
            duration_ms=(self._at_s - before_s) * 1000,
        )
        return requests.Chunk(session_id="-", chunk=chunk)


def _llm_streaming(streaming: StreamingConfig) -> dict[str, Any]:
    """Without what is done here."""
    asked = streaming.model_dump(exclude_unset=True, exclude={"audio_token_chunk_size"})
    return {"generate_audio": streaming.generate_audio, **asked}
