"""Tokens, foreign pages and addresses, as the running node judges them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from gateway.serving import FAKES, Client, Served, serving, talk, user
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

PATHS = ("/ws/chat", "/ws/stream", "/ws/voice")
TOKEN = "a söcret tøken"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("locked")
    others = "https://robot.example|https://other.example"
    with serving(folder, **FAKES, HOST="0.0.0.0", GATEWAY_TOKEN=TOKEN, ORIGINS=others) as served:
        yield served


async def asked(served: Served, path: str, origin: str | None = None, **options) -> tuple[int, str] | str:
    """The type of the first answer; or code and reason of the close."""
    async with Client(served, path, origin=origin, **options) as client:
        try:
            await client.send("what is this?")
            return (await client.receive())["type"]
        except ConnectionClosed:
            return await client.closed()


def bearer(token: str) -> dict[str, str]:
    # As bytes of UTF-8, which http libraries take for latin-1.
    return {"Authorization": f"Bearer {token}".encode().decode("latin-1")}


@pytest.mark.parametrize("path", PATHS)
def test_a_token_lets_in_from_the_address_or_a_header(locked: Served, path: str) -> None:
    async def connected() -> list:
        return [
            await asked(locked, f"{path}?token={quote(TOKEN)}"),
            await asked(locked, path, additional_headers=bearer(TOKEN)),
        ]

    assert talk(connected()) == ["error", "error"]


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_the_reason_is_told_by_the_close(locked: Served, path: str) -> None:
    async def connected() -> list:
        return [
            await asked(locked, path),
            await asked(locked, f"{path}?token=wrong"),
            await asked(locked, f"{path}?token={quote(TOKEN[:-1])}"),
            await asked(locked, f"{path}?token=%FF%00"),
            await asked(locked, path, additional_headers=bearer(f"{TOKEN}n")),
        ]

    none, *wrong = talk(connected())
    assert none == (1008, "no token: expected ?token=… or Authorization: Bearer …")
    assert wrong == [(1008, "wrong token")] * 4


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://[", "http://" + "é" * 200])
def test_a_page_of_another_site_is_refused_even_with_the_token(locked: Served, origin: str) -> None:
    code, reason = talk(asked(locked, f"/ws/chat?token={quote(TOKEN)}", additional_headers={"Origin": origin}))
    assert code == 1008
    assert reason.startswith("Origin ")


def test_pages_of_this_server_and_of_sites_in_origins_are_let_in(locked: Served) -> None:
    for origin in ("https://robot.example", "https://other.example", f"http://127.0.0.1:{locked.port}"):
        assert talk(asked(locked, f"/ws/chat?token={quote(TOKEN)}", origin)) == "error"


def test_without_a_token_names_that_are_pointed_here_are_refused(fake: Served) -> None:
    """As a page does whose name means this machine since a minute ago."""

    async def rebound() -> tuple[int, str] | str:
        connecting = connect(f"ws://evil.example:{fake.port}/ws/chat", host="127.0.0.1", port=fake.port)
        async with connecting as page:
            await asyncio.wait_for(page.wait_closed(), 60)
            return page.close_code or 0, page.close_reason or ""

    code, reason = talk(rebound())
    assert code == 1008
    assert "evil.example" in reason
    assert fake.get("/metrics", {"Host": "evil.example"})[0] == 403
    assert talk(asked(fake, "/ws/chat", "https://evil.example"))[0] == 1008
    assert talk(asked(fake, "/ws/chat", f"http://127.0.0.1:{fake.port}")) == "error"


def test_metrics_need_the_token_and_are_what_prometheus_reads(locked: Served) -> None:
    for refused in (locked.get("/metrics"), locked.get("/metrics?token=wrong")):
        assert refused[0] == 403
    status, text = locked.get(f"/metrics?token={quote(TOKEN)}")
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {"dora_voice_connections", "dora_voice_requests", "dora_voice_tokens", "dora_voice_refused"} <= set(families)
    assert families["dora_voice_refused"].samples[0].value > 0


def test_health_is_for_everybody(locked: Served) -> None:
    assert locked.get("/healthz") == (200, json.dumps({"status": "ok"}, separators=(",", ":")))


def test_every_answer_has_the_headers_of_a_careful_site(fake: Served) -> None:
    for path in ("/", "/healthz", "/metrics", "/protocol.json", "/page/index.html", "/nothing"):
        answer = raw(fake, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").lower()
        for header in ("content-security-policy: default-src 'self'", "x-content-type-options: nosniff"):
            assert header in answer, path
        assert "server:" not in answer


@pytest.mark.parametrize(
    "path",
    [
        *("/page/../server.py", "/page/..%2fserver.py", "/page/%2e%2e/server.py", "/page//etc/passwd"),
        *("/page/..%5cserver.py", "/page/%00", "/page/....//server.py", "/page/", "/page/" + "a" * 5_000),
    ],
)
def test_only_the_page_is_served(fake: Served, path: str) -> None:
    answer = raw(fake, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert re.match(r"HTTP/1.1 40[045] ", answer), answer[:200]


def raw(served: Served, request: str) -> str:
    """The answer, to a request that no library would send."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
        connection.sendall(request.encode())
        answer = b""
        while data := connection.recv(65_536):
            answer += data
    return answer.decode("latin-1")


def test_the_token_and_what_was_said_are_not_in_the_log(locked: Served) -> None:
    async def chat() -> dict:
        async with Client(locked, f"/ws/chat?token={quote(TOKEN)}") as client:
            return (await client.ask([user("A private word.")], request_id="mine\nINFO forged: line"))[-1]

    assert talk(chat())["type"] == "done"
    log = locked.log.read_text()
    assert "request='mine\\nINFO forged: line' outcome=done" in log
    for secret in (TOKEN, quote(TOKEN), "private", "token="):
        assert secret not in log.replace("?token=…", ""), secret


def node(folder: Path, **env: str) -> tuple[int | None, str]:
    """Exit code and output of the node alone, that has not to get as far as dora."""
    run = subprocess.run(
        [Path(sys.executable).parent / "dora-voice-gateway"],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return run.returncode, run.stdout + run.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7"])
def test_other_addresses_without_a_token_are_refused_at_the_start(tmp_path: Path, host: str) -> None:
    code, said = node(tmp_path, HOST=host)
    assert code == 2
    assert f"HOST='{host}'" in said
    assert "GATEWAY_TOKEN" in said
    assert "Traceback" not in said


def test_a_port_that_is_taken_ends_it_with_a_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = node(tmp_path, PORT=str(port))
    assert code == 1
    assert f"PORT={port}: can't listen there (Address already in use" in said
    assert said.endswith("expected a free port\n")
    assert "Traceback" not in said


@pytest.mark.parametrize("how_many", [0, 3])
def test_a_stop_tells_everybody_and_ends_the_dataflow(tmp_path: Path, how_many: int) -> None:
    async def live() -> list:
        clients = [Client(served, path) for path in PATHS[:how_many]]
        for client in clients:
            await client.__aenter__()
        if clients:
            await clients[0].send(
                {"messages": [user("A very long story, please.")], "streaming": True, "request_id": "r"}
            )
            await clients[1].send({"type": "prefill", "request": {"session_id": "s", "messages": [user("Hello.")]}})
            await clients[2].send({"type": "begin"})
            for client in clients:
                await client.receive()
        os.killpg(served.pid, signal.SIGINT)
        return [await client.closed() for client in clients]

    ends, code = None, None
    # It has ended by itself when it is stopped once more.
    with suppress(ProcessLookupError), serving(tmp_path, **FAKES) as served:
        dataflow = psutil.Process(served.pid)
        ends = talk(live())
        code = dataflow.wait(60)
    assert ends == [(1001, "closing")] * how_many
    assert code == 0
    assert "Traceback" not in served.log.read_text()
