"""Many clients at once, on all paths, and one after the other: everybody gets what is theirs, and nothing is left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import psutil
import pytest
import soundfile
from gateway.serving import FAKES, ROOT, Client, Served, serving, talk, user
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import ConnectionClosed

from dora_voice.audio import resample

FRAME = 320


def question(country: str) -> str:
    return f"What is the capital of {country}?"


async def chats(served: Served, country: str) -> str:
    async with Client(served, "/ws/chat") as client:
        asked = {"generation": {"max_new_tokens": 24}, "streaming": True}
        return (await client.ask([user(question(country))], **asked))[-1]["text"]


async def streams(served: Served, country: str) -> str:
    async with Client(served, "/ws/stream") as client:
        request = {"session_id": "mine", "messages": [user(question(country))], "is_last_chunk": True}
        request |= {"generation": {"max_new_tokens": 24}, "streaming": {"generate_audio": False}}
        return (await client.request(type="complete", request=request))[-1]["response"]["full_text"]


async def types(served: Served, country: str, *, speak: bool) -> str:
    """In a voice conversation; what is spoken is heard at once."""
    async with Client(served, "/ws/voice") as client:
        await client.send({"type": "begin"})
        await client.until("ready")
        await client.send({"type": "text", "text": question(country), "speak": speak})
        reply = await replied(client)
        await client.send({"type": "end"})
        with suppress(ConnectionClosed):
            while True:
                await client.socket.recv()
        return reply


async def replied(client: Client) -> str:
    """The first reply, whole."""
    heard: dict[int, int] = {}
    text = ""
    while True:
        message = await asyncio.wait_for(client.socket.recv(), 240)
        if isinstance(message, bytes):
            segment_id, flags = int.from_bytes(message[:8], "little"), message[8]
            heard[segment_id] = heard.get(segment_id, 0) + (len(message) - 16) // 4
            played = {"segment_id": segment_id, "samples": heard[segment_id], "fin": bool(flags & 1)}
            await client.send({"type": "played", **played})
        elif (document := json.loads(message))["type"] == "reply":
            text += document["text_delta"]
            if document.get("fin"):
                return text


async def talks(served: Served) -> str:
    """Says the first question of a recording, as fast as it is spoken."""
    samples, rate = soundfile.read(ROOT / "tests/recordings/three-questions.wav", dtype="float32")
    samples = resample(samples, rate, 16_000)[: 16_000 * 4]
    sound = np.concatenate([samples, np.zeros(16_000 * 3, np.float32)]).astype("<f4")
    async with Client(served, "/ws/voice") as client:
        await client.send({"type": "begin"})
        await client.until("ready")
        for start in range(0, len(sound), FRAME):
            await client.send(sound[start : start + FRAME].tobytes())
        return (await client.until("transcript"))[-1]["text"]


async def vanishes(served: Served) -> None:
    """In the middle of an answer."""
    client = Client(served, "/ws/chat")
    await client.__aenter__()
    await client.send({"messages": [user("Tell me a very long story.")], "streaming": True, "tts": {"enabled": True}})
    await client.until("chunk")
    client.socket.transport.abort()


async def flushes(served: Served) -> None:
    """Interrupts itself again and again."""
    async with Client(served, "/ws/voice") as client:
        await client.send({"type": "begin"})
        await client.until("ready")
        for _ in range(3):
            await client.send({"type": "text", "text": "Tell me a very long story.", "speak": False})
            await client.until("reply")
            await client.send({"type": "stop"})
            await client.until("flush")


def test_eight_clients_and_two_that_disturb_get_their_own_answers(real: Served) -> None:
    def everybody() -> list[Coroutine[Any, Any, str]]:
        return [
            *(chats(real, country) for country in ("France", "Italy", "Germany")),
            *(streams(real, country) for country in ("Spain", "Japan")),
            types(real, "Russia", speak=True),
            types(real, "China", speak=False),
            talks(real),
        ]

    async def alone() -> list[str]:
        """What each is told when nobody else is there."""
        return [await each for each in everybody()]

    async def together() -> list[str]:
        replies, *_ = await asyncio.gather(asyncio.gather(*everybody()), vanishes(real), flushes(real))
        return replies

    by_itself = talk(alone())
    assert len(set(by_itself)) == 8
    assert "Paris" in by_itself[0]
    assert "France" in by_itself[-1]
    assert talk(together()) == by_itself
    talk(nobody_is_left(real))


# One after the other


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("many"), **FAKES, FAKE_TEXTS="what is this") as served:
        yield served


def metrics(served: Served) -> dict[str, float]:
    samples = [s for family in text_string_to_metric_families(served.get("/metrics")[1]) for s in family.samples]
    return {name: sum(s.value for s in samples if s.name == name) for name in {s.name for s in samples}}


async def nobody_is_left(served: Served) -> None:
    async with asyncio.timeout(60):
        while (now := metrics(served))["dora_voice_sessions"] or now["dora_voice_connections"]:
            await asyncio.to_thread(served.get, "/healthz")


def memory(served: Served) -> dict[str, int]:
    """Of each node, bytes."""
    nodes = psutil.Process(served.pid).children(recursive=True)
    return {" ".join(node.cmdline()[-1:]) + f" {node.pid}": node.memory_info().rss for node in nodes}


async def session(served: Served, number: int) -> None:
    """One on each path in turn; some are spoken, some vanish."""
    country = ("France", "Italy")[number % 2]
    match number % 5:
        case 0:
            await chats(served, country)
        case 1:
            await streams(served, country)
        case 2:
            await types(served, country, speak=True)
        case 3:
            await types(served, country, speak=False)
        case _:
            await vanishes(served)


def test_two_hundred_sessions_leave_memory_flat(roomy: Served) -> None:
    async def live(numbers: range) -> dict[str, int]:
        for number in numbers:
            await session(roomy, number)
        await nobody_is_left(roomy)
        return memory(roomy)

    talk(live(range(50)))
    used = [talk(live(range(begin, begin + 50))) for begin in (50, 100, 150)]
    assert used[0].keys() == used[1].keys() == used[2].keys()
    for node in used[0]:
        # Once, dora 1.1 loads the symbols of Python, as for a backtrace: 50 MB, and never again.
        # 50 sessions that leave 100 kB each would be 5 MB, each time.
        grown = [later[node] - earlier[node] for earlier, later in pairwise(used)]
        assert min(grown) < 3_000_000, (node, used)
    assert (metrics(roomy)["dora_voice_sessions"], metrics(roomy)["dora_voice_connections"]) == (0, 0)
