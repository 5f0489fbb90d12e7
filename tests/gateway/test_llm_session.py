"""A session of the llm, asked in requests; the llm and the tts are scripts here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from dora_voice.messages import Audio, Control, Message, Played, Text
from dora_voice_gateway.bridge import Bridge
from dora_voice_gateway.errors import ClientError
from dora_voice_gateway.llm_session import REPORT_SAMPLES, Delta, LlmSession
from dora_voice_session import requests
from dora_voice_session.schema import StreamingResponse

CHUNK = 480


class Dataflow:
    """Sees what is sent, and sends what a test wants to come back."""

    def __init__(self) -> None:
        self.bridge = Bridge()
        self.sent: list[Message] = []
        self._news = asyncio.Event()
        self.bridge.wake = self._take

    def _take(self) -> None:
        while (message := self.bridge.take()) is not None:
            self.sent.append(message)
            self._news.set()

    def of(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(message.text) for message in self.of(Text)]

    async def until_asked(self, count: int) -> Text:
        return await self._until(Text, count)

    async def until_heard(self, asked: Text) -> None:
        """The client has taken some sound, and all that came before it."""
        self.sound(asked, REPORT_SAMPLES, text_end=5)
        await self._until(Played, 1)

    async def _until(self, kind: type[Message], count: int) -> Any:
        while len(self.of(kind)) < count:
            self._news.clear()
            await self._news.wait()
        return self.of(kind)[count - 1]

    def result(self, asked: Text, result: dict[str, Any], **fields: Any) -> None:
        text = json.dumps({"session_id": asked.session_id, **result})
        self._deliver(asked, Text, port="result", text=text, **fields)

    def fails(self, asked: Text, error: str) -> None:
        self._deliver(asked, Text, port="result", text="", fin=True, error=error)

    def chunk(self, asked: Text, text: str, index: int = 0) -> None:
        self.result(asked, {"type": "chunk", "chunk": {"chunk_index": index, "text_delta": text}})

    def response(self, asked: Text, text: str = "", reason: str = "end") -> None:
        response = {"session_id": asked.session_id, "full_text": text, "finish_reason": reason}
        self.result(asked, {"type": "response", "response": response})

    def sound(self, asked: Text, samples: int = CHUNK, **fields: Any) -> None:
        sound = np.full(samples, 0.1, np.float32)
        self._deliver(asked, Audio, port="reply_audio", samples=sound, sample_rate=24_000, **fields)

    def _deliver(self, asked: Text, kind: type[Message], **fields: Any) -> None:
        self.bridge.deliver(kind(session_id=asked.session_id, segment_id=asked.segment_id, **fields))


Story = Callable[[Dataflow, LlmSession], Coroutine[Any, Any, Any]]


def tell(story: Story, timeout_s: float = 5.0) -> Any:
    async def in_loop() -> Any:
        dataflow = Dataflow()
        dataflow.bridge.begin()
        return await asyncio.wait_for(story(dataflow, LlmSession(dataflow.bridge, "test", timeout_s)), 10)

    return asyncio.run(in_loop())


async def taken(session: LlmSession, **options: Any) -> list[Delta | StreamingResponse]:
    async with aclosing(session.answer("generate", **options)) as reply:
        return [made async for made in reply]


def test_each_request_is_a_segment_of_its_own_and_gets_its_own_result() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        first = asyncio.create_task(session.ask("history"))
        second = asyncio.create_task(session.ask("session", settings={"language": "de"}))
        asked = [await dataflow.until_asked(1), await dataflow.until_asked(2)]
        assert [message.segment_id for message in asked] == [1, 2]
        assert dataflow.requests[1]["settings"] == {"language": "de"}
        dataflow.result(asked[1], {"type": "done"})
        dataflow.result(asked[0], {"type": "history", "messages": []})
        assert (await first).type == "history"
        assert (await second).type == "done"

    tell(story)


def test_the_session_is_named_where_the_llm_looks_for_it() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        for kind, fields in (("prefill", {"request": {"session_id": "a client's", "messages": []}}), ("stop", {})):
            asked = asyncio.create_task(session.ask(kind, **fields))
            message = await dataflow.until_asked(len(dataflow.requests) + 1)
            dataflow.result(message, {"type": "done"})
            await asked
        prefill, stop = dataflow.requests
        name = dataflow.sent[0].session_id
        assert prefill["request"]["session_id"] == stop["session_id"] == name
        assert "session_id" not in prefill

    tell(story)


def test_a_reply_is_its_text_its_sound_and_the_response_when_both_are_complete() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        reply = asyncio.create_task(taken(session, speaks=True))
        asked = await dataflow.until_asked(1)
        dataflow.chunk(asked, "Hello ")
        dataflow.sound(asked, text_end=6)
        dataflow.chunk(asked, "you.", 1)
        dataflow.response(asked, "Hello you.")
        dataflow.sound(asked, REPORT_SAMPLES, text_end=10)
        dataflow.sound(asked, 0, fin=True)
        *deltas, response = await reply
        assert "".join(delta.text for delta in deltas) == "Hello you."
        assert [delta.samples.size for delta in deltas if delta.samples is not None] == [CHUNK, REPORT_SAMPLES]
        assert (response.full_text, response.finish_reason) == ("Hello you.", "end")
        heard = [(played.samples, played.text_end, played.fin) for played in dataflow.of(Played)]
        total = CHUNK + REPORT_SAMPLES
        assert heard == [(total, 10, False), (total, 10, True)]
        assert dataflow.of(Control) == [], "nothing is cut"

    tell(story)


def test_a_written_reply_waits_for_no_sound() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        reply = asyncio.create_task(taken(session, speaks=False))
        asked = await dataflow.until_asked(1)
        dataflow.response(asked, "Hi.")
        assert [made.full_text for made in await reply] == ["Hi."]
        assert dataflow.of(Played) == dataflow.of(Control) == []

    tell(story)


def test_a_stopped_reply_ends_with_its_response_and_the_rest_of_its_sound_is_not_taken() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        reply = asyncio.create_task(taken(session, speaks=True))
        asked = await dataflow.until_asked(1)
        dataflow.chunk(asked, "Once ")
        await dataflow.until_heard(asked)
        stopping = asyncio.create_task(session.stop())
        stop = await dataflow.until_asked(2)
        dataflow.sound(asked, text_end=5)
        dataflow.response(asked, "Once ", "stopped")
        dataflow.result(stop, {"type": "done"})
        await stopping
        *deltas, response = await reply
        assert sum(delta.samples.size for delta in deltas if delta.samples is not None) == REPORT_SAMPLES
        assert response.finish_reason == "stopped"
        assert dataflow.of(Played)[-1].fin
        assert dataflow.of(Played)[-1].samples == REPORT_SAMPLES
        (flush,) = dataflow.of(Control)
        assert (flush.verb, flush.segment_id) == ("flush", 2), "what was asked since lives on"

    tell(story)


def test_a_reply_that_is_still_spoken_when_its_text_is_complete_stops_at_once() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        reply = asyncio.create_task(taken(session, speaks=True))
        asked = await dataflow.until_asked(1)
        dataflow.response(asked, "A long story.")
        await dataflow.until_heard(asked)
        session.cut_short()
        # No more sound comes: nothing has to.
        *_, response = await reply
        assert (response.full_text, response.finish_reason) == ("A long story.", "stopped")
        assert [control.verb for control in dataflow.of(Control)] == ["flush"]

    tell(story)


def test_sound_of_an_earlier_reply_is_not_taken_for_the_next() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        first = asyncio.create_task(taken(session, speaks=True))
        asked = await dataflow.until_asked(1)
        dataflow.response(asked, "One.")
        await dataflow.until_heard(asked)
        session.cut_short()
        await first
        second = asyncio.create_task(taken(session, speaks=True))
        again = await dataflow.until_asked(2)
        dataflow.sound(asked, 777)
        dataflow.sound(asked, 0, fin=True)
        dataflow.response(asked, "One.")
        dataflow.response(again, "Two.")
        dataflow.sound(again, CHUNK)
        dataflow.sound(again, 0, fin=True)
        sound, response = await second
        assert isinstance(sound, Delta)
        assert sound.samples is not None
        assert (sound.samples.size, response.full_text) == (CHUNK, "Two.")

    tell(story)


def test_a_reply_that_nobody_takes_further_is_cut() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        async with aclosing(session.answer("generate", speaks=True)) as reply:
            first = asyncio.ensure_future(anext(reply))
            asked = await dataflow.until_asked(1)
            dataflow.chunk(asked, "Once ")
            await first
        assert [control.verb for control in dataflow.of(Control)] == ["flush"]
        assert dataflow.of(Played)[-1].fin

    tell(story)


def test_refusals_are_errors_that_do_not_tell_the_dataflows_own_name() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        asking = asyncio.create_task(session.ask("generate"))
        asked = await dataflow.until_asked(1)
        error = f"session {asked.session_id}: expected one that has begun"
        dataflow.result(asked, {"type": "error", "code": "unknown_session", "error": error})
        with pytest.raises(ClientError, match=r"^the session: expected one that has begun$") as raised:
            await asking
        assert raised.value.code == "unknown_session"

    tell(story)


def test_a_request_that_the_llm_fails_at_is_an_error_at_once() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        asking = asyncio.create_task(session.ask("history"))
        dataflow.fails(await dataflow.until_asked(1), "ValueError: no")
        with pytest.raises(ClientError, match="ValueError: no") as raised:
            await asking
        assert raised.value.code == "failed"

    tell(story)


def test_a_reply_that_the_tts_fails_at_is_an_error_and_cut() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        reply = asyncio.create_task(taken(session, speaks=True))
        dataflow.sound(await dataflow.until_asked(1), 0, fin=True, error="ValueError: no")
        with pytest.raises(ClientError, match="could not be spoken: ValueError: no") as raised:
            await reply
        assert raised.value.code == "failed"
        assert [control.verb for control in dataflow.of(Control)] == ["flush"]

    tell(story)


def test_a_crash_of_the_llm_ends_everything_that_is_asked() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        asking = [asyncio.create_task(session.ask("history")), asyncio.create_task(taken(session, speaks=True))]
        asked = await dataflow.until_asked(2)
        dataflow.fails(asked, "restarted: node llm crashed")
        dataflow.sound(asked, 0, fin=True, error="restarted: node llm crashed")
        dataflow.bridge.lose("result")
        for each in asking:
            with pytest.raises(ClientError) as raised:
                await each
            assert raised.value.code == "unavailable"

    tell(story)


def test_after_a_crash_the_next_requests_wait_until_the_llm_answers_and_keep_their_order() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        dataflow.bridge.lose("result")
        await asyncio.sleep(0)
        asking = [asyncio.create_task(session.ask("reset")), asyncio.create_task(session.ask("history"))]
        # The first is lost, as the node is not back.
        await dataflow.until_asked(1)
        dataflow.result(await dataflow.until_asked(2), {"type": "model", "name": "m", "parts": [], "fields": []})
        reset, history = await dataflow.until_asked(3), await dataflow.until_asked(4)
        assert [request["type"] for request in dataflow.requests] == ["model", "model", "reset", "history"]
        dataflow.result(reset, {"type": "done"})
        dataflow.result(history, {"type": "history", "messages": []})
        assert [result.type for result in await asyncio.gather(*asking)] == ["done", "history"]

    tell(story)


def test_an_llm_that_does_not_come_back_is_given_up() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        dataflow.bridge.lose("result")
        await asyncio.sleep(0)
        with pytest.raises(ClientError, match="not back") as raised:
            await session.ask("history")
        assert raised.value.code == "unavailable"

    tell(story, timeout_s=0.01)


def test_a_reply_that_waits_for_the_tts_can_be_stopped() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        dataflow.bridge.lose("reply_audio")
        await asyncio.sleep(0)
        reply = asyncio.create_task(taken(session, speaks=True))
        await dataflow.until_asked(1)
        session.cut_short()
        with pytest.raises(ClientError) as raised:
            await reply
        assert raised.value.code == "stopped"
        assert [request["type"] for request in dataflow.requests] == ["complete"], "the try"

    tell(story)


def test_a_node_that_is_gone_for_good_is_not_waited_for() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        dataflow.bridge.lose("result", for_good=True)
        await asyncio.sleep(0)
        with pytest.raises(ClientError, match="not started again") as raised:
            await session.ask("history")
        assert raised.value.code == "unavailable"

    tell(story)


def test_a_crash_of_the_tts_ends_what_is_spoken_only() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        spoken = asyncio.create_task(taken(session, speaks=True))
        asked = await dataflow.until_asked(1)
        others = [asyncio.create_task(session.ask("history")), asyncio.create_task(taken(session, speaks=False))]
        history, written = await dataflow.until_asked(2), await dataflow.until_asked(3)
        dataflow.sound(asked, 0, fin=True, error="restarted: node tts crashed")
        dataflow.bridge.lose("reply_audio")
        with pytest.raises(ClientError) as raised:
            await spoken
        assert raised.value.code == "unavailable"
        dataflow.result(history, {"type": "history", "messages": []})
        dataflow.response(written, "Hi.")
        result, (response,) = await asyncio.gather(*others)
        assert isinstance(result, requests.History)
        assert response.full_text == "Hi."

    tell(story)


def test_what_never_comes_is_given_up() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        with pytest.raises(ClientError) as raised:
            await session.ask("history")
        assert raised.value.code == "timeout"
        with pytest.raises(ClientError):
            await taken(session, speaks=True)
        assert [control.segment_id for control in dataflow.of(Control)] == [3], "nobody goes on with it"

    tell(story, timeout_s=0.01)


def test_stopping_what_has_not_begun_is_no_error() -> None:
    async def story(dataflow: Dataflow, session: LlmSession) -> None:
        stopping = asyncio.create_task(session.stop())
        asked = await dataflow.until_asked(1)
        dataflow.result(asked, {"type": "error", "code": "unknown_session", "error": "no"})
        await stopping

    tell(story)
