"""/ws/stream where it is close: what is stopped before the llm has it, slow clients, limits. The nodes are scripts."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine
from typing import Any, cast

import numpy as np
import pytest

from dora_voice.messages import Audio, Message, Text
from dora_voice_gateway import stream
from dora_voice_gateway.bridge import Bridge
from dora_voice_gateway.config import Config
from dora_voice_gateway.connection import Connection
from dora_voice_gateway.errors import GoneError
from dora_voice_gateway.gateway import Gateway
from dora_voice_session.schema import Document

STREAMING = {"generate_audio": False, "audio_token_chunk_size": 5}


class Client:
    """A WebSocket in one process: `offered` tells that it is sent something, `takes` whether it takes that."""

    serving: asyncio.Task[None]

    def __init__(self) -> None:
        self.offered = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()
        self._said: asyncio.Queue[str | None] = asyncio.Queue()
        self._got: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._sending = asyncio.Lock()

    def say(self, kind: str, **fields: Any) -> None:
        label = {} if "request" in fields else {"session_id": "anna"}
        self._said.put_nowait(json.dumps({"type": kind, "request_id": kind, **label, **fields}))

    def prefill(self, request_id: str = "prefill") -> None:
        request = {"session_id": "anna", "messages": [{"role": "user", "content": "Hi."}]}
        self.say("prefill", request=request, request_id=request_id)

    def speak(self, **fields: Any) -> None:
        data = base64.b64encode(np.full(1_600, 0.1, "<f4").tobytes()).decode()
        self.say("audio", data=data, is_last_chunk=True, **fields)

    def go(self) -> None:
        self._said.put_nowait(None)

    async def got(self) -> dict[str, Any]:
        return await self._got.get()

    async def receive(self) -> str:
        if (said := await self._said.get()) is None:
            raise GoneError
        return said

    async def send(self, document: Document) -> None:
        async with self._sending:
            self.offered.set()
            await self.takes.wait()
            self._got.put_nowait(json.loads(document.model_dump_json(exclude_none=True)))


class Nodes:
    """What the gateway sends to the dataflow, and what comes back."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._sent: asyncio.Queue[Message] = asyncio.Queue()
        bridge.wake = self._take

    def _take(self) -> None:
        while (message := self._bridge.take()) is not None:
            self._sent.put_nowait(message)

    async def asked(self) -> tuple[dict[str, Any], Text]:
        """The next request to the llm."""
        while True:
            if isinstance(message := await self._sent.get(), Text):
                return json.loads(message.text), message

    async def recorded(self) -> Audio:
        """The next sound for the stt."""
        while True:
            if isinstance(message := await self._sent.get(), Audio) and message.fin:
                return message

    def answer(self, asked: Text, **result: Any) -> None:
        text = json.dumps({"session_id": asked.session_id, **result})
        self._deliver(asked, port="result", text=text, fin=True)

    def respond(self, asked: Text, reason: str = "end") -> None:
        self.answer(asked, type="response", response={"session_id": asked.session_id, "finish_reason": reason})

    def write_down(self, recording: Audio, text: str) -> None:
        self._deliver(recording, port="recorded", text=text, fin=True)

    def _deliver(self, asked: Message, **fields: Any) -> None:
        self._bridge.deliver(Text(session_id=asked.session_id, segment_id=asked.segment_id, **fields))


Story = Callable[[Client, Nodes, Gateway], Coroutine[Any, Any, None]]


def tell(story: Story, **limits: Any) -> None:
    async def in_loop() -> None:
        bridge = Bridge()
        bridge.begin()
        gateway, client = Gateway(Config(**limits), bridge), Client()
        client.serving = asyncio.create_task(stream.serve(cast(Connection, client), gateway))
        try:
            await asyncio.wait_for(story(client, Nodes(bridge), gateway), 10)
        finally:
            client.go()
            client.serving.cancel()
            await asyncio.gather(client.serving, return_exceptions=True)
        assert bridge.open_lines == 0

    asyncio.run(in_loop())


@pytest.mark.parametrize("act", ["stop", "rollback", "reset", "end"])
def test_what_waits_for_a_place_is_ended_before_it_begins(act: str) -> None:
    async def story(client: Client, nodes: Nodes, gateway: Gateway) -> None:
        async with gateway.places.take(nobody_is_told):
            client.prefill()
            assert (await client.got())["type"] == "queued"
            client.say(act)
            asked, message = await nodes.asked()
            assert asked["type"] == act
            nodes.answer(message, **result_of(act))
            stopped = await client.got()
            assert (stopped["request_id"], stopped["code"]) == ("prefill", "stopped")
            assert (await client.got())["request_id"] == act
            assert gateway.places.waiting == 0
        client.prefill("again")
        assert (await nodes.asked())[0]["type"] == "prefill"

    tell(story, places=1)


def test_what_is_being_written_down_is_not_read_after_a_rollback() -> None:
    async def story(client: Client, nodes: Nodes, gateway: Gateway) -> None:
        client.speak()
        recording = await nodes.recorded()
        client.say("rollback")
        asked, message = await nodes.asked()
        nodes.write_down(recording, "too late")
        nodes.answer(message, **result_of("rollback"))
        assert asked["type"] == "rollback"
        assert (await client.got())["code"] == "stopped"
        assert (await client.got())["type"] == "rollback"
        client.say("history")
        assert (await nodes.asked())[0]["type"] == "history", "and no prefill"

    tell(story)


def test_a_transcript_that_was_told_is_not_read_after_a_stop() -> None:
    async def story(client: Client, nodes: Nodes, gateway: Gateway) -> None:
        client.speak()
        recording = await nodes.recorded()
        client.takes.clear()
        nodes.write_down(recording, "hello")
        await client.offered.wait()
        client.say("stop")
        asked, message = await nodes.asked()
        assert asked["type"] == "stop"
        client.takes.set()
        nodes.answer(message, type="done")
        got = [await client.got() for _ in range(3)]
        assert [each["type"] for each in got] == ["transcript", "error", "done"]

    tell(story)


@pytest.mark.parametrize("act", ["stop", "rollback"])
def test_a_reply_has_ended_for_the_client_before_what_ended_it_is_done(act: str) -> None:
    async def story(client: Client, nodes: Nodes, gateway: Gateway) -> None:
        client.say("generate", streaming=STREAMING)
        _, reply = await nodes.asked()
        # The client is slow: chunks wait, and what ends the reply is done meanwhile.
        client.takes.clear()
        nodes.answer(reply, type="chunk", chunk={"chunk_index": 0, "text_delta": "Once "})
        await client.offered.wait()
        client.say(act)
        _, acting = await nodes.asked()
        nodes.answer(acting, **result_of(act))
        nodes.respond(reply, "stopped")
        client.takes.set()
        got = [await client.got() for _ in range(4)]
        assert [each["type"] for each in got] == ["chunk", "chunk", "response", result_of(act)["type"]]
        assert got[2]["response"]["finish_reason"] == "stopped"

    tell(story)


def test_a_refused_request_does_not_change_how_the_next_is_answered() -> None:
    async def story(client: Client, nodes: Nodes, gateway: Gateway) -> None:
        async def generate(**fields: Any) -> tuple[dict[str, Any], Text]:
            client.say("generate", **fields)
            asked, message = await nodes.asked()
            return asked["streaming"], message

        kept, message = await generate(streaming=STREAMING)
        nodes.respond(message)
        refused, message = await generate(streaming={"generate_audio": True, "ref_audio_path": "voice.wav"})
        assert refused["ref_audio_path"] == "voice.wav"
        nodes.answer(message, type="error", code="unsupported_field", error="ref_audio_path: no")
        after, message = await generate()
        assert after == kept == {"generate_audio": False}
        nodes.respond(message)
        client.say("end")
        _, message = await nodes.asked()
        nodes.answer(message, type="done")
        while (await client.got())["type"] != "done":
            pass
        anew, _ = await generate()
        assert anew == {"generate_audio": True}, "the session was forgotten, and this with it"

    tell(story)


def test_only_what_is_set_of_a_generation_is_asked_for() -> None:
    async def story(client: Client, nodes: Nodes, gateway: Gateway) -> None:
        client.say("generate", generation={"top_k": 3})
        assert (await nodes.asked())[0]["generation"] == {"top_k": 3}

    tell(story)


def test_when_the_server_is_stopped_everything_that_is_owed_ends() -> None:
    async def story(client: Client, nodes: Nodes, gateway: Gateway) -> None:
        client.say("generate")
        await nodes.asked()
        client.prefill("waits")
        client.say("history")
        # It is asked when all before it was taken.
        assert (await nodes.asked())[0]["type"] == "history"
        gateway.is_closing = True
        client.serving.cancel()
        got = [await client.got() for _ in range(3)]
        assert {each["request_id"] for each in got} == {"generate", "waits", "history"}
        assert {each["code"] for each in got} == {"closing"}

    tell(story)


def test_no_more_utterances_wait_than_other_requests() -> None:
    async def story(client: Client, nodes: Nodes, gateway: Gateway) -> None:
        client.say("generate", streaming=STREAMING)
        _, reply = await nodes.asked()
        for number in range(stream.MOST_WAITING + 1):
            client.speak(request_id=f"audio-{number}")
        client.prefill("one more")
        busy = await client.got()
        assert (busy["request_id"], busy["code"]) == ("one more", "busy")
        client.say("history")
        await nodes.asked()
        nodes.respond(reply)
        codes = []
        for _ in range(stream.MOST_WAITING):
            nodes.write_down(await nodes.recorded(), "")
        while len(codes) < stream.MOST_WAITING + 1:
            if (got := await client.got()).get("request_id", "").startswith("audio"):
                codes.append(got.get("code", got["type"]))
        assert codes == ["transcript"] * stream.MOST_WAITING + ["busy"]

    tell(story, requests_per_minute=1000)


def test_utterances_are_requests_of_which_there_are_so_many_a_minute_but_their_pieces_are_not() -> None:
    async def story(client: Client, nodes: Nodes, gateway: Gateway) -> None:
        for _ in range(5):
            client.say("audio", data="")
        for number in range(3):
            client.speak(request_id=str(number))
        limited = await client.got()
        assert (limited["request_id"], limited["code"]) == ("2", "rate_limited")
        assert "REQUESTS_PER_MINUTE=2" in limited["error"]

    tell(story, requests_per_minute=2)


async def nobody_is_told(position: int) -> None:
    raise AssertionError("the only place is free")


def result_of(act: str) -> dict[str, Any]:
    if act == "rollback":
        return {"type": "rollback", "result": {"success": True, "restored_position": 1}}
    return {"type": "done"}
