"""What hostile, broken and careless clients send: a clear error or a close with a code, and everybody else goes on."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from gateway.serving import FAKES, Client, Served, media, serving, talk, user
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import ConnectionClosed

PATHS = ("/ws/chat", "/ws/stream", "/ws/voice")
PCM = np.zeros(320, "<f4").tobytes()
SILENCE = base64.b64encode(PCM).decode()


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """All limits are so tight that they can be met."""
    limits = {"CONNECTIONS": "3", "PLACES": "1", "VOICES": "1", "REQUESTS_PER_MINUTE": "3", "MESSAGE_MB": "1"}
    limits |= {"AUDIO_S": "2", "IDLE_S": "2", "FAKE_TEXTS": "what is this"}
    with serving(tmp_path_factory.mktemp("narrow"), **FAKES, **limits) as served:
        yield served


async def answers(served: Served) -> None:
    """It still does, on all three paths."""
    async with Client(served, "/ws/chat") as client:
        assert (await client.ask([user("All is well.")]))[-1]["text"]
    async with Client(served, "/ws/stream") as client:
        request = {"session_id": "s", "messages": [user("All is well.")], "is_last_chunk": True}
        assert (await client.request(type="complete", request=request))[-1]["response"]["full_text"]
    async with Client(served, "/ws/voice") as client:
        await client.send({"type": "begin"})
        await client.until("ready")
        await client.send({"type": "text", "text": "All is well.", "speak": False})
        assert (await client.until("reply"))[-1]["type"] == "reply"


def metric(served: Served, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(served.get("/metrics")[1])
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


async def nobody_is_left(served: Served) -> None:
    """The gateway has noticed that everybody went, and every session has ended."""
    async with asyncio.timeout(60):
        # It can only be asked.
        while metric(served, "dora_voice_connections") or metric(served, "dora_voice_sessions"):
            await asyncio.to_thread(served.get, "/healthz")


async def one_error(client: Client, message: str | bytes) -> dict[str, Any]:
    await client.send(message)
    return (await client.until("error"))[-1]


BROKEN = {
    "nothing": "",
    "no JSON": "hello",
    "half a document": '{"messages": [{"role": "user", "con',
    "two documents": "{}{}",
    "no object": "[1, 2]",
    "null": "null",
    "an unknown field": '{"type": "stop", "messages": [], "x": 1}',
    "an unknown type": '{"type": "../../x"}',
    "deep nesting": "[" * 1_000_000,
    "deep nesting of objects": '{"messages":' * 100_000 + "1" + "}" * 100_000,
    "half a character": '{"type": "\\ud800"}',
    "NaN": '{"type": "played", "segment_id": NaN, "samples": Infinity}',
    "10,000 digits": '{"type": "played", "segment_id": ' + "9" * 10_000 + "}",
    "4,000 digits": '{"type": "played", "segment_id": ' + "9" * 4_000 + ', "samples": 1}',
    "a fraction beyond all": '{"type": "played", "segment_id": 1e999, "samples": 1}',
    "a long name": '{"' + "k" * 4_000_000 + '": 1}',
    "a long type": '{"type": "' + "k" * 4_000_000 + '"}',
    "millions of values": '{"messages": [' + "1," * 3_000_000 + "1]}",
    "millions of fields": "{" + ",".join(f'"{index}":1' for index in range(500_000)) + "}",
    "one name twice": '{"type": "x", "type": "y"}',
    "a zero byte": '{"type": "\\u0000"}',
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("broken", BROKEN)
def test_a_document_that_can_not_be_read_is_told_why(fake: Served, path: str, broken: str) -> None:
    async def connected() -> dict:
        async with Client(fake, path) as client:
            failed = await one_error(client, BROKEN[broken])
            assert (await one_error(client, "again"))["code"] == "bad_request"
            return failed

    failed = talk(connected())
    assert failed["code"] in ("bad_request", "too_large")
    assert 10 < len(failed["error"]) < 500


@pytest.mark.parametrize("path", ["/ws/chat", "/ws/stream"])
def test_binary_messages_are_refused_where_json_is_expected(fake: Served, path: str) -> None:
    async def connected() -> dict:
        async with Client(fake, path) as client:
            return await one_error(client, bytes(1_000))

    assert talk(connected())["error"] == "a binary message of 1000 bytes: expected a JSON document"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["../../x", "user", "ask", "stop", "\ud83d", "a" * 300, SILENCE]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = ["type", "messages", "request", "session_id", "request_id", "generation", "tts", "image", "data", "format"]
NAMES += ["sample_rate", "is_last_chunk", "endpointing", "settings", "segment_id", "samples", "text", "fin", "speak"]
TYPES = ["ask", "stop", "prefill", "edit", "generate", "complete", "session", "history", "model", "rollback", "reset"]
TYPES += ["audio", "begin", "text", "played", "x"]
MESSAGES = st.lists(
    st.fixed_dictionaries({}, optional={"role": st.sampled_from(["user", "system", "x"]), "content": JSON}), max_size=3
)
DOCUMENTS = st.dictionaries(st.sampled_from(NAMES), JSON | MESSAGES, max_size=5).flatmap(
    lambda fields: st.sampled_from(TYPES).map(lambda kind: {**fields, "type": kind})
)
LEGAL_WITHOUT_ANSWER = {"stop", "played", "audio", "text", "begin"}


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(documents=st.lists(DOCUMENTS | JSON, min_size=1, max_size=8), noise=st.binary(max_size=64))
def test_whatever_documents_come_the_connection_goes_on(
    fake: Served, path: str, documents: list[Any], noise: bytes
) -> None:
    async def connected() -> str:
        async with Client(fake, path) as client:
            for document in documents:
                await client.send(json.dumps(document))
            if path != "/ws/voice":
                await client.send(noise)
            await client.send('{"type": "the last"}')
            while True:
                failed = (await client.until("error"))[-1]
                if "the last" in failed["error"]:
                    return failed["code"]

    assert talk(connected()) == "bad_request"


def test_after_all_of_that_requests_are_answered_and_nobody_is_left(fake: Served) -> None:
    talk(answers(fake))
    talk(nobody_is_left(fake))
    assert "Traceback" not in fake.log.read_text()


@pytest.mark.parametrize("path", PATHS)
def test_a_message_of_100_mb_closes_its_connection(fake: Served, path: str) -> None:
    async def connected() -> tuple[int, str]:
        async with Client(fake, path, compression=None) as client:
            with suppress(ConnectionClosed):
                await client.send('"' + "x" * 100_000_000 + '"')
            return await client.closed()

    assert talk(connected())[0] in (1009, 1006)
    talk(answers(fake))


def test_a_message_that_unpacks_to_100_mb_closes_its_connection(fake: Served) -> None:
    async def connected() -> tuple[int, str]:
        async with Client(fake, "/ws/chat", compression="deflate") as client:
            await client.send(" " * 100_000_000)
            return await client.closed()

    assert talk(connected())[0] == 1009
    talk(answers(fake))


@pytest.mark.parametrize("label", ["../../x", "a/b\\c", "\u0000", "é" * 256, "'; DROP TABLE", "%2e%2e"])
def test_a_hostile_session_id_is_a_label_and_nothing_else(fake: Served, label: str) -> None:
    async def connected() -> dict:
        async with Client(fake, "/ws/stream") as client:
            request = {"session_id": label, "messages": [user("Hello.")], "is_last_chunk": True}
            return (await client.request(type="complete", request=request))[-1]

    responded = talk(connected())
    assert responded["type"] == "response"
    assert responded["session_id"] == label
    assert label not in fake.log.read_text()


def test_a_session_id_can_not_be_changed_nor_be_too_long(fake: Served) -> None:
    async def connected(*labels: str) -> dict:
        async with Client(fake, "/ws/stream") as client:
            answers = [(await client.request(type="history", session_id=label))[-1] for label in labels]
            return answers[-1]

    assert talk(connected("mine", "another's"))["code"] == "bad_request"
    assert "expected 'mine'" in talk(connected("mine", "another's"))["error"]
    assert "256" in talk(connected("x" * 257))["error"]


@pytest.mark.parametrize(
    ("part", "code", "said"),
    [
        ({"type": "audio", "data": "no base64!"}, "bad_request", "no base64"),
        ({"type": "audio", "data": "abc"}, "bad_request", "no base64"),
        ({"type": "audio", "data": "QUJD"}, "bad_request", "expected a file such as wav"),
        ({"type": "audio", "data": ""}, "bad_request", "expected a file such as wav"),
        (media("audio", b"abcde", format="f32le"), "bad_request", "whole samples of 4 bytes"),
        (media("audio", np.array([np.nan], "<f4").tobytes(), format="f32le"), "bad_request", "NaN or infinite"),
        (media("audio", bytes(5_000_000), format="s16le", sample_rate=8_000), "too_large", "AUDIO_S=35"),
        (media("audio", PCM, format="f32le", sample_rate=1), "bad_request", "8000"),
        (media("audio", PCM, format="f32le", sample_rate=10**9), "bad_request", "192000"),
        (media("audio", PCM, format="f64le"), "bad_request", "format"),
        (media("audio", b"RIFF\xff\xff\xff\xffWAVEfmt "), "bad_request", "expected a file such as wav"),
        (media("image", b"\x89PNG\r\n\x1a\n"), "unsupported_part", "not image"),
        (media("smell", b""), "bad_request", "'smell'"),
    ],
)
def test_a_bad_part_is_refused_by_its_place(fake: Served, part: dict, code: str, said: str) -> None:
    async def connected() -> dict:
        async with Client(fake, "/ws/chat") as client:
            failed = (await client.ask([user([{"type": "text", "text": "Hear this: "}, part])]))[-1]
            assert (await client.ask([user("Hello.")]))[-1]["type"] == "done"
            return failed

    failed = talk(connected())
    assert failed["code"] == code
    assert said in failed["error"]
    assert "messages[0].content[1]" in failed["error"] or "messages.0.content" in failed["error"]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"abc", "bad_request"),
        (np.array([0, np.inf], "<f4").tobytes(), "bad_request"),
        (np.zeros(16_000 * 120, "<f4").tobytes(), "rate_limited"),
    ],
)
def test_a_bad_frame_of_a_microphone_is_refused_and_the_next_is_heard(fake: Served, frame: bytes, code: str) -> None:
    async def connected() -> dict:
        async with Client(fake, "/ws/voice") as client:
            await client.send({"type": "begin"})
            await client.until("ready")
            failed = await one_error(client, frame)
            for _ in range(10):
                await client.send(PCM)
            await client.send({"type": "text", "text": "Hello.", "speak": False})
            await client.until("reply")
            return failed

    assert talk(connected())["code"] == code


def test_what_is_out_of_place_in_a_conversation_is_refused(fake: Served) -> None:
    async def connected() -> list[str]:
        async with Client(fake, "/ws/voice") as client:
            early = [await one_error(client, PCM), await one_error(client, '{"type": "text", "text": "Hello."}')]
            await client.send({"type": "begin"})
            await client.until("ready")
            late = [
                await one_error(client, '{"type": "begin"}'),
                await one_error(client, '{"type": "played", "segment_id": 77, "samples": 5}'),
                await one_error(client, '{"type": "played", "segment_id": 4611686018427387903, "samples": 0}'),
                await one_error(client, '{"type": "played", "segment_id": -1, "samples": 5}'),
            ]
            return [failed["error"] for failed in (*early, *late)]

    binary, unbegun, twice, unsent, unknown, negative = talk(connected())
    assert "expected a JSON document" in binary
    assert "expected 'begin' first" in unbegun
    assert "expected once" in twice
    assert "segment_id=77: only 0 were sent" in unsent
    assert "only 0 were sent" in unknown
    assert "greater than or equal to 0" in negative


@pytest.mark.parametrize("path", PATHS)
def test_clients_that_vanish_at_any_point_leave_nothing(fake: Served, path: str) -> None:
    begin: dict[str, dict[str, Any]] = {
        "/ws/chat": {"messages": [user("Tell me a story.")], "streaming": True, "tts": {"enabled": True}},
        "/ws/stream": {"type": "complete", "request": {"session_id": "s", "messages": [user("Tell me a story.")]}},
        "/ws/voice": {"type": "begin"},
    }

    async def vanish(after: int) -> None:
        client = Client(fake, path)
        await client.__aenter__()
        if after:
            await client.send(begin[path])
        if after > 1:
            await client.receive()
        if after > 2:
            await client.send({"type": "text", "text": "Tell me a story."} if path == "/ws/voice" else begin[path])
        client.socket.transport.abort()

    async def all_of_them() -> None:
        await asyncio.gather(*(vanish(after) for after in (0, 1, 2, 3) * 4))
        await nobody_is_left(fake)
        await answers(fake)

    talk(all_of_them())


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + bytes(200),
        b"GET /ws/chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
        b"POST /ws/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n" + bytes(100_000),
    ],
)
def test_what_is_no_websocket_is_sent_away(fake: Served, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", fake.port), timeout=60) as connection:
        connection.sendall(sent)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 4")
    talk(answers(fake))


def frame(opcode: int, data: bytes, *, fin: bool = True, flags: int = 0) -> bytes:
    """As a client masks it, whatever is in it."""
    return bytes([fin << 7 | flags | opcode, 0x80 | 126]) + struct.pack(">H", len(data)) + bytes(4) + data


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(1, b"\xff\xfe{}"), 1007),
        (frame(3, b""), 1002),
        (frame(0, b"goes on"), 1002),
        (frame(1, b"{}", flags=0x20), 1002),
        (frame(9, bytes(126)), 1002),
        (b"\x81\x05hello", 1002),
        (b"\x81\xff" + struct.pack(">Q", 2**62) + bytes(4), 1009),
        (frame(1, zlib.compress(bytes(100))[2:], flags=0x40), 1002),
    ],
)
def test_what_is_no_frame_closes_the_connection_with_a_code(fake: Served, sent: bytes, code: int) -> None:
    async def connected() -> int:
        async with Client(fake, "/ws/chat", compression=None) as client:
            client.socket.transport.write(sent)
            return (await client.closed())[0]

    assert talk(connected()) == code
    talk(answers(fake))


def deaf() -> socket.socket:
    """Takes little of what it hasn't read."""
    ear = socket.socket()
    ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    return ear


@pytest.mark.parametrize("path", PATHS)
def test_who_reads_nothing_is_closed_and_slows_nobody(fake: Served, path: str) -> None:
    # Each answer repeats some of it.
    many = json.dumps({"type": "é" * 200, "messages": "é" * 20})

    async def listened() -> tuple[int, str]:
        ear = deaf()
        ear.connect(("127.0.0.1", fake.port))
        ear.setblocking(False)
        async with Client(fake, path, sock=ear, compression=None, ping_interval=None) as client:
            client.socket.transport.pause_reading()
            # Until the gateway, which can't answer, reads no more either.
            with suppress(TimeoutError, ConnectionClosed):
                while True:
                    await asyncio.wait_for(client.send(many), 2)
            while metric(fake, "dora_voice_connections", protocol=path[4:]):
                # In between, everybody else is answered.
                async with Client(fake, "/ws/stream" if path == "/ws/chat" else "/ws/chat") as other:
                    await one_error(other, "hello")
            client.socket.transport.resume_reading()
            with suppress(ConnectionClosed):
                while True:
                    await client.socket.recv()
            return await client.closed()

    code, reason = talk(listened())
    assert code == 1013
    assert reason.startswith("too slow")
    talk(nobody_is_left(fake))


def test_more_clients_than_may_be_connected_are_told_so(narrow: Served) -> None:
    async def crowd() -> tuple[int, str]:
        async with Client(narrow, "/ws/chat") as one, Client(narrow, "/ws/stream"), Client(narrow, "/ws/voice"):
            async with Client(narrow, "/ws/chat") as late:
                closed = await late.closed()
            await one_error(one, "hello")
            return closed

    assert talk(crowd()) == (1013, "CONNECTIONS=3 are connected")
    talk(nobody_is_left(narrow))


def test_who_waits_for_a_voice_conversation_is_told_where_it_stands(narrow: Served) -> None:
    async def live() -> list[dict]:
        async with Client(narrow, "/ws/voice") as first, Client(narrow, "/ws/voice") as second:
            await first.send({"type": "begin"})
            await first.until("ready")
            await second.send({"type": "begin"})
            told = await second.until("queued")
            await first.send({"type": "end"})
            return told + await second.until("ready")

    queued, ready = talk(live())
    assert (queued["type"], queued["position"]) == ("queued", 1)
    assert ready["type"] == "ready"
    talk(nobody_is_left(narrow))


def test_who_waits_for_an_answer_is_told_where_it_stands(narrow: Served) -> None:
    async def live() -> list[dict]:
        async with Client(narrow, "/ws/chat") as first, Client(narrow, "/ws/stream") as second:
            await first.send({"messages": [user("Tell me a story. " * 400)], "streaming": True})
            await first.until("chunk")
            request = {"session_id": "s", "messages": [user("Hello.")], "is_last_chunk": True}
            waited = await second.request(type="complete", request=request)
            return [*waited, (await first.until("done"))[-1]]

    queued, *_, response, done = talk(live())
    assert (queued["type"], queued["position"]) == ("queued", 1)
    assert (response["type"], done["type"]) == ("response", "done")
    talk(nobody_is_left(narrow))


def test_limits_say_their_names(narrow: Served) -> None:
    async def live() -> tuple[dict, dict, tuple[int, str], tuple[int, str]]:
        async with Client(narrow, "/ws/chat") as client:
            long = media("audio", bytes(2 * 16_000 * 3), format="s16le")
            too_long = (await client.ask([user([long])]))[-1]
            for _ in range(2):
                await client.ask([user("Hello.")])
            too_often = (await client.ask([user("Hello.")]))[-1]
            silent = await client.closed()
        async with Client(narrow, "/ws/chat", compression=None) as client:
            await client.send("x" * 1_100_000)
            return too_long, too_often, silent, await client.closed()

    too_long, too_often, silent, too_large = talk(live())
    assert (too_long["code"], too_long["error"][-9:]) == ("too_large", "AUDIO_S=2")
    assert (too_often["code"], too_often["error"]) == ("rate_limited", "more than REQUESTS_PER_MINUTE=3")
    assert silent == (1000, "nothing was said for 2 s")
    assert too_large[0] == 1009


def test_what_is_refused_before_it_is_served_comes_back_with_its_id_and_is_counted(fake: Served) -> None:
    def refused(path: str) -> float:
        found = re.search(rf'requests_total{{outcome="bad_request",protocol="{path}"}} (\S+)', fake.get("/metrics")[1])
        return float(found[1]) if found else 0.0

    async def asked(path: str, **document: Any) -> dict[str, Any]:
        async with Client(fake, f"/ws/{path}") as client:
            if path == "stream":
                await client.request(type="model", session_id="mine")
            await client.send(document)
            return await client.receive()

    before = refused("chat"), refused("stream")
    message = {"role": "user", "content": "Hi."}
    chat = talk(asked("chat", messages=[message], foo=1, request_id="r1"))
    stream = talk(asked("stream", type="generate", session_id="mine", foo=1, request_id="r2"))
    assert (chat["code"], chat["request_id"]) == ("bad_request", "r1")
    assert (stream["code"], stream["request_id"], stream["session_id"]) == ("bad_request", "r2", "mine")
    assert (refused("chat"), refused("stream")) == (before[0] + 1, before[1] + 1)
