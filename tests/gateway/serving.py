"""The gateway's dataflow under the real dora, and clients that talk with it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from websockets.asyncio.client import ClientConnection, connect

from dora_voice_gateway import chat_protocol, stream_protocol, voice_protocol

ROOT = Path(__file__).parents[2]
FAKES = {"STT_BACKEND": "fake", "LLM_BACKEND": "fake", "TTS_BACKEND": "fake"}
SERVER = {
    "/ws/chat": TypeAdapter(chat_protocol.Server),
    "/ws/stream": TypeAdapter(stream_protocol.Server),
    "/ws/voice": TypeAdapter(voice_protocol.Server),
}
READY_S = 240
PATIENCE_S = 120
"""So long a client waits for something that must come."""


@dataclass(frozen=True, slots=True)
class Served:
    port: int
    log: Path
    pid: int
    run: subprocess.Popen[bytes]

    def ended(self) -> None:
        """Waits until it has ended by itself."""
        self.run.wait(READY_S)

    def url(self, path: str) -> str:
        return f"ws://127.0.0.1:{self.port}{path}"

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@contextmanager
def serving(folder: Path, dataflow: Path = ROOT / "serve.yml", **env: str) -> Iterator[Served]:
    """`dora run serve.yml` until it answers; stopped as by Ctrl-C."""
    log = folder / "serve.log"
    port = free_port()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with log.open("w") as out:
        run = subprocess.Popen(
            ["dora", "run", str(dataflow)],
            cwd=folder,
            env={**os.environ, "PATH": path, "PORT": str(port), "HISTORY_DIR": str(folder / "history"), **env},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    served = Served(port, log, run.pid, run)
    try:
        wait_until_ready(served)
        yield served
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGINT)
        try:
            run.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            raise


def wait_until_ready(served: Served) -> None:
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        assert served.run.poll() is None, served.log.read_text()[-3000:]
        try:
            if served.get("/healthz")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(served.log.read_text()[-3000:])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def talk(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs a client to its end."""
    return asyncio.run(coroutine)


class Client:
    """One WebSocket of the gateway. Everything that it gets has to be as the protocol says."""

    def __init__(self, served: Served, path: str, **options: Any) -> None:
        self._kinds = SERVER[path.partition("?")[0]]
        self._connecting = connect(served.url(path), max_size=None, **options)
        self.socket: ClientConnection

    async def __aenter__(self) -> Client:
        self.socket = await self._connecting
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.socket.close()

    async def send(self, document: dict[str, Any] | str | bytes) -> None:
        await self.socket.send(json.dumps(document) if isinstance(document, dict) else document)

    async def receive(self) -> dict[str, Any]:
        """The next JSON message; sound in between is skipped."""
        while True:
            message = await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
            if isinstance(message, str):
                self._kinds.validate_json(message)
                return json.loads(message)

    async def until(self, *types: str) -> list[dict[str, Any]]:
        """Everything up to a message of one of these types, that one included."""
        messages: list[dict[str, Any]] = []
        while not messages or messages[-1]["type"] not in types:
            messages.append(await self.receive())
        return messages

    async def ask(self, messages: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
        """A request of /ws/chat, and everything that comes of it."""
        await self.send({"messages": messages, **fields})
        return await self.until("done", "error")

    async def request(self, **document: Any) -> list[dict[str, Any]]:
        """A request of /ws/stream, and everything that comes of it."""
        await self.send(document)
        ends = ("prefilled", "response", "rollback", "done", "history", "model", "error")
        return await self.until(*ends)

    async def closed(self) -> tuple[int, str]:
        """Code and reason of the close that the gateway sends."""
        await asyncio.wait_for(self.socket.wait_closed(), PATIENCE_S)
        return self.socket.close_code or 0, self.socket.close_reason or ""


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def media(kind: str, data: bytes, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "data": base64.b64encode(data).decode(), **fields}


def text_of(messages: list[dict[str, Any]]) -> str:
    return "".join(message.get("text_delta", "") for message in messages if message["type"] == "chunk")


def audio_of(messages: list[dict[str, Any]]) -> np.ndarray:
    """float32, 24 kHz."""
    data = b"".join(base64.b64decode(message.get("audio_data", "")) for message in messages)
    return np.frombuffer(data, "<f4")


def frame(data: bytes) -> tuple[int, int, np.ndarray]:
    """Segment, flags and samples of a frame of /ws/voice."""
    segment_id, flags, _ = struct.unpack("<QII", data[:16])
    return segment_id, flags, np.frombuffer(data[16:], "<f4")


@contextmanager
def frozen(served: Served, name: str, then: int = signal.SIGKILL) -> Iterator[None]:
    """The node hears nothing any more, and is killed at the end, or what else is given."""
    pid = node_of(served.pid, name)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, then)


def node_of(ancestor: int, name: str) -> int:
    """The process below `ancestor` that runs the console script `name`."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [
        pid
        for pid in parents
        if is_below(pid, ancestor, parents) and name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert found, f"no process {name}"
    return max(found)


def is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor
