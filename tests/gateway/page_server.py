"""A gateway that says on its WebSocket what a test tells it to."""

import asyncio
import json
import socket
import struct
import threading
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocketDisconnect

PAGE = Path(__file__).parents[2] / "nodes/gateway/dora_voice_gateway/page"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
FIN, SPECULATIVE = 1, 2
PATIENCE_S = 30


class PageServer:
    """Use it as a context. `welcome` is what it answers to `begin`; without `token` it lets everybody in."""

    def __init__(self, token=None):
        self.welcome = [{"type": "ready", "session_id": "a", "output_sample_rate": 24000}]
        self.token = token
        self.received = []
        self.audio_bytes = 0
        self._changed = threading.Condition()
        self._client = None
        routes = [
            Route("/", self._index),
            Mount("/page", StaticFiles(directory=PAGE)),
            WebSocketRoute("/ws/voice", self._voice),
        ]
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self._server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), lifespan="off", log_level="warning"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listening]})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.force_exit = self._server.should_exit = True
        self._thread.join()

    def say(self, *messages):
        for message in messages:
            self._do(self._client.send_text(json.dumps(message)))

    def verb(self, verb, segment_id):
        self.say({"type": verb, "segment_id": segment_id})

    def play(self, segment_id, samples, flags=0, text_end=0):
        """In pieces of 20 ms, the last one with `flags`."""
        pieces = [samples[start : start + 480] for start in range(0, len(samples), 480)] or [samples]
        all_flags = [flags & SPECULATIVE] * (len(pieces) - 1) + [flags]
        self._do(
            self._send_all(
                struct.pack("<QII", segment_id, piece_flags, text_end) + piece.astype("<f4").tobytes()
                for piece, piece_flags in zip(pieces, all_flags, strict=True)
            )
        )

    def hang_up(self, code=1000):
        self._do(self._client.close(code))

    def expect(self, **values):
        """The first message received that has these values, once it is there; it is taken."""

        def found():
            return next((one for one in self.received if values.items() <= one.items()), None)

        self._wait(found)
        message = found()
        self.received.remove(message)
        return message

    def expect_audio(self, at_least_bytes):
        self._wait(lambda: self.audio_bytes >= at_least_bytes)

    async def _index(self, _request):
        return FileResponse(PAGE / "index.html", headers={"Content-Security-Policy": POLICY})

    async def _voice(self, client):
        self._loop = asyncio.get_running_loop()
        await client.accept()
        if self.token and client.query_params.get("token") != self.token:
            await client.send_text(json.dumps({"type": "error", "code": "unauthorized", "error": "wrong token"}))
            await client.close(4401)
            return
        try:
            while True:
                await self._take(client, await client.receive())
        except (WebSocketDisconnect, RuntimeError):
            return

    async def _take(self, client, frame):
        if frame["type"] == "websocket.disconnect":
            raise WebSocketDisconnect
        if frame.get("bytes"):
            self.audio_bytes += len(frame["bytes"])
        else:
            message = json.loads(frame["text"])
            if message["type"] == "begin":
                self._client = client
                for answer in self.welcome:
                    await client.send_text(json.dumps(answer))
            self.received.append(message)
        self._tell()

    async def _send_all(self, frames):
        for frame in frames:
            await self._client.send_bytes(frame)

    def _do(self, coroutine):
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def _tell(self):
        with self._changed:
            self._changed.notify_all()

    def _wait(self, condition):
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_S), self.received[-5:]
