"""One place only: who waits is told, and may give up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from gateway.serving import FAKES, Client, Served, serving, talk, user

STORY = {"messages": [user("Tell me a story!")], "streaming": True, "tts": {"enabled": True}}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("narrow"), **FAKES, PLACES="1") as served:
        yield served


def test_a_request_is_told_its_position_and_answered_when_its_turn_comes(narrow: Served) -> None:
    async def chat() -> list[dict[str, Any]]:
        async with Client(narrow, "/ws/chat") as first, Client(narrow, "/ws/chat") as second:
            await first.send(STORY)
            await first.until("chunk")
            await second.send({"messages": [user("Hello.")]})
            waited = await second.until("queued")
            await first.send({"type": "stop"})
            await first.until("done")
            return waited + await second.until("done", "error")

    waited = talk(chat())
    assert (waited[0]["type"], waited[0]["position"]) == ("queued", 1)
    assert waited[-1]["text"] == "You said: Hello."


def test_a_request_that_is_stopped_in_line_is_done_at_once(narrow: Served) -> None:
    async def chat() -> tuple[dict[str, Any], dict[str, Any]]:
        async with Client(narrow, "/ws/chat") as first, Client(narrow, "/ws/chat") as second:
            await first.send(STORY)
            await first.until("chunk")
            await second.send({"messages": [user("Hello.")]})
            await second.until("queued")
            await second.send({"type": "stop"})
            stopped = (await second.until("done", "error"))[-1]
            await first.send({"type": "stop"})
            return stopped, (await second.ask([user("Still there?")]))[-1]

    stopped, after = talk(chat())
    assert (stopped["type"], stopped["stopped"], stopped["text"]) == ("done", True, "")
    assert after["text"] == "You said: Still there?"
