"""/ws/chat: whole conversations, one after the other, answered by a session that keeps what it has read."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from dora_voice.audio import Samples
from dora_voice_gateway import chat_protocol as protocol
from dora_voice_gateway.chat_protocol import Ask
from dora_voice_gateway.connection import Connection
from dora_voice_gateway.content import content_of
from dora_voice_gateway.errors import ClientError
from dora_voice_gateway.gateway import Gateway, Measured
from dora_voice_gateway.parsing import parse, request_id_of
from dora_voice_gateway.side_by_side import side_by_side
from dora_voice_gateway.sound import Sound, pcm
from dora_voice_session import requests
from dora_voice_session.schema import REPLY_RATE_HZ, StreamingResponse

MOST_WAITING = 16
"""Requests of one connection."""
CHUNK_SAMPLES = REPLY_RATE_HZ // 5


async def serve(connection: Connection, gateway: Gateway) -> None:
    chat = Chat(connection, gateway)
    try:
        await side_by_side(chat.read(), chat.answer())
    finally:
        await chat.close()


class Chat:
    def __init__(self, connection: Connection, gateway: Gateway) -> None:
        self.session = gateway.llm_session("chat")
        self._connection = connection
        self._gateway = gateway
        self._rate = gateway.request_rate()
        self._waiting: asyncio.Queue[Ask] = asyncio.Queue(MOST_WAITING)
        self._running: Ask | None = None
        self._in_line: asyncio.Task[protocol.Done] | None = None
        """The running request, while it waits for a place."""
        self._is_stopped = False
        self._has_own_prompt = True
        """The session begins with the llm node's own system prompt."""

    async def read(self) -> None:
        """Takes what comes, also while a request runs."""
        while True:
            message = await self._connection.receive()
            try:
                asked = parse(protocol.CLIENT, message)
                if isinstance(asked, protocol.Stop):
                    await self._stop()
                else:
                    self._take(asked)
            except ClientError as error:
                self._gateway.count_unread("chat", error)
                await self._connection.send(_failed(error, request_id_of(message)))

    def _take(self, asked: Ask) -> None:
        self._rate.check()
        if self._waiting.full():
            raise ClientError("busy", f"{MOST_WAITING} requests wait already: expected one at a time")
        self._waiting.put_nowait(asked)

    async def answer(self) -> None:
        """One request after the other: each ends in exactly one Done or Failed."""
        while True:
            self._running = asked = await self._waiting.get()
            self._is_stopped = False
            try:
                with self._gateway.measured("chat", repr(asked.request_id)) as measured:
                    await self._connection.send(await self._answered(asked, measured))
            except ClientError as error:
                await self._connection.send(_failed(error, asked.request_id))
            self._running = None

    async def close(self) -> None:
        """What has not been answered when the server is stopped is told so."""
        waiting = [] if self._running is None else [self._running]
        while not self._waiting.empty():
            waiting.append(self._waiting.get_nowait())
        if self._gateway.is_closing:
            for asked in waiting:
                error = ClientError("closing", "the server is being stopped")
                await self._connection.send(_failed(error, asked.request_id))
        self.session.close()

    async def _stop(self) -> None:
        if self._running is not None and not self._is_stopped:
            self._is_stopped = True
            if self._in_line is not None:
                self._in_line.cancel()
            await self.session.stop()

    async def _answered(self, asked: Ask, measured: Measured) -> protocol.Done:
        self._in_line = answering = asyncio.create_task(self._answer(asked, measured))
        try:
            return await answering
        except asyncio.CancelledError:
            # Was it stopped in line, or has the client gone?
            if (own := asyncio.current_task()) is None or own.cancelling():
                raise
            return _stopped(asked)
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    async def _answer(self, asked: Ask, measured: Measured) -> protocol.Done:
        async def tell(position: int) -> None:
            await self._connection.send(protocol.Queued(request_id=asked.request_id, position=position))

        input_tokens = 0
        try:
            async with self._gateway.places.take(tell):
                self._in_line = None
                prefilled = await self._prefill(asked)
                usage = prefilled.result.usage
                input_tokens = usage.input_tokens
                await self._connection.send(
                    protocol.PrefillDone(
                        request_id=asked.request_id,
                        input_tokens=usage.input_tokens,
                        reused_tokens=usage.reused_tokens,
                    )
                )
                if not self._is_stopped:
                    return await self._generate(asked, measured)
        except ClientError:
            # What was stopped before it was read has failed, in the llm's words.
            if not self._is_stopped:
                raise
        return _stopped(asked, input_tokens)

    async def _prefill(self, asked: Ask) -> requests.Prefilled:
        """Reads what is new in the conversation."""
        content = await content_of(asked.messages, self._gateway)
        await self._begin_with(own_prompt=asked.tts.enabled and asked.messages[0].role != "system")
        image = asked.image.model_dump(exclude_unset=True)
        request: dict[str, Any] = {
            "messages": [message.model_dump() for message in content.messages],
            "is_last_chunk": True,
            "generation": asked.generation.model_dump(),
            "streaming": {"generate_audio": asked.tts.enabled, "ref_audio_data": asked.tts.ref_audio_data},
            "use_tts_template": asked.use_tts_template,
            "enable_thinking": asked.enable_thinking,
            # A film's pictures and words are brought together here; the model has nothing else to do.
            "omni_mode": asked.omni_mode and not content.has_film,
            **({"image": image} if image else {}),
        }
        result = await self.session.ask("edit", request=request)
        assert isinstance(result, requests.Prefilled)
        return result

    async def _begin_with(self, *, own_prompt: bool) -> None:
        """The llm node's own system prompt asks for words to be spoken. Without it the client's messages are all."""
        if own_prompt and not self._has_own_prompt:
            self.session.close()
            self.session = self._gateway.llm_session("chat")
        elif not own_prompt and self._has_own_prompt:
            await self.session.ask("session", settings={"system_prompt": ""})
        self._has_own_prompt = own_prompt

    async def _generate(self, asked: Ask, measured: Measured) -> protocol.Done:
        sound = Sound(CHUNK_SAMPLES if asked.streaming else None)
        speaks = asked.tts.enabled
        response = StreamingResponse(session_id="-")
        async with aclosing(self.session.answer("generate", speaks=speaks)) as reply:
            async for made in reply:
                measured.output()
                if isinstance(made, StreamingResponse):
                    response = made
                elif made.samples is not None:
                    for piece in sound.add(made.samples):
                        await self._chunk(asked, audio=piece)
                elif asked.streaming:
                    await self._chunk(asked, text=made.text)
        rest = sound.rest()
        if asked.streaming and rest.size:
            await self._chunk(asked, audio=rest)
        self._gateway.count_tokens(response.usage)
        return protocol.Done(
            request_id=asked.request_id,
            text=response.full_text,
            generated_tokens=response.usage.generated_tokens,
            input_tokens=response.usage.input_tokens,
            stopped=response.finish_reason == "stopped" or self._is_stopped,
            finish_reason=response.finish_reason,
            audio_data=pcm(rest) if speaks and not asked.streaming else None,
        )

    async def _chunk(self, asked: Ask, *, text: str | None = None, audio: Samples | None = None) -> None:
        await self._connection.send(
            protocol.Chunk(
                request_id=asked.request_id,
                text_delta=text,
                audio_data=None if audio is None else pcm(audio),
                audio_sample_rate=None if audio is None else REPLY_RATE_HZ,
            )
        )


def _stopped(asked: Ask, input_tokens: int = 0) -> protocol.Done:
    """Before it had said anything."""
    return protocol.Done(
        request_id=asked.request_id, text="", generated_tokens=0, input_tokens=input_tokens, stopped=True
    )


def _failed(error: ClientError, request_id: str | None) -> protocol.Failed:
    return protocol.Failed(request_id=request_id, code=error.code, error=str(error))
