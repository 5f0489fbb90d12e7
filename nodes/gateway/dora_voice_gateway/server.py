"""The HTTP and WebSocket server, on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket

from dora_voice_gateway import chat, stream, voice
from dora_voice_gateway.connection import FAULT, GOING_AWAY, NORMAL, POLICY, TRY_LATER, Connection, Protocol
from dora_voice_gateway.describe import protocol
from dora_voice_gateway.errors import GoneError
from dora_voice_gateway.gateway import Gateway

log = logging.getLogger("dora_voice.gateway")

PAGE = Path(str(files("dora_voice_gateway"))) / "page"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; connect-src 'self' ws: wss:; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
GOODBYE_S = 1.0
STOP_S = 3.0

Serve = Callable[[Connection, Gateway], Awaitable[None]]


def app(gateway: Gateway) -> Starlette:
    def page(request: Request) -> Response:
        return FileResponse(PAGE / "index.html")

    def health(request: Request) -> Response:
        status = "closing" if gateway.is_closing else "ok"
        return JSONResponse({"status": status}, 503 if gateway.is_closing else 200)

    def metrics(request: Request) -> Response:
        if why := gateway.door.why_closed(request.headers, request.query_params):
            return PlainTextResponse(why, 403)
        gateway.metrics.sessions.set(gateway.bridge.open_lines)
        gateway.metrics.waiting.labels("request").set(gateway.places.waiting)
        gateway.metrics.waiting.labels("voice").set(gateway.voices.waiting)
        return Response(gateway.metrics.text(), media_type="text/plain; version=0.0.4")

    def described(request: Request) -> Response:
        return JSONResponse(protocol())

    return Starlette(
        routes=[
            Route("/", page),
            Route("/healthz", health),
            Route("/metrics", metrics),
            Route("/protocol.json", described),
            WebSocketRoute("/ws/chat", _let_in(gateway, "chat", chat.serve)),
            WebSocketRoute("/ws/stream", _let_in(gateway, "stream", stream.serve)),
            WebSocketRoute("/ws/voice", _let_in(gateway, "voice", voice.serve)),
            Mount("/page", StaticFiles(directory=PAGE)),
        ]
    )


def _let_in(gateway: Gateway, name: str, serve: Serve) -> Callable[[WebSocket], Awaitable[None]]:
    async def talk(socket: WebSocket) -> None:
        # Of a handshake that is refused a browser tells its page nothing; of a close code it does.
        await socket.accept()
        connection = Connection(socket, gateway.config.idle_s)
        if why := gateway.door.why_closed(socket.headers, socket.query_params):
            gateway.metrics.refused.inc()
            log.warning("%s refused: %s", name, why)
            await connection.close(POLICY, why)
            return
        if gateway.is_closing or len(gateway.tasks) >= gateway.config.connections:
            gateway.metrics.refused.inc()
            reason = "closing" if gateway.is_closing else f"CONNECTIONS={gateway.config.connections} are connected"
            await connection.close(TRY_LATER, reason)
            return
        task = asyncio.current_task()
        assert task is not None
        gateway.tasks.add(task)
        gateway.metrics.connections.labels(name).inc()
        try:
            with suppress(GoneError):
                await serve(connection, gateway)
            await connection.close(NORMAL)
        except asyncio.CancelledError:
            # The server is being stopped.
            await connection.close(GOING_AWAY, "closing")
        except Exception:
            log.exception("%s: a connection failed", name)
            await connection.close(FAULT, "failed")
        finally:
            gateway.tasks.discard(task)
            gateway.metrics.connections.labels(name).dec()

    return talk


class Server:
    def __init__(self, app: Starlette, listener: socket.socket, gateway: Gateway) -> None:
        self._listener = listener
        self._gateway = gateway
        config = uvicorn.Config(
            app,
            log_config=None,
            # Below, it writes addresses, and tokens in them.
            log_level="warning",
            headers=list(HEADERS.items()),
            access_log=False,
            lifespan="off",
            ws=Protocol,
            ws_max_size=gateway.config.message_mb * 2**20,
            ws_ping_interval=20,
            ws_ping_timeout=20,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="clients", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Clients are told, and what runs ends: whatever the dataflow does, within a few seconds."""
        if self._loop is not None:
            with suppress(RuntimeError):
                asyncio.run_coroutine_threadsafe(self._say_goodbye(), self._loop)
        self._thread.join(STOP_S)
        self._listener.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gateway.bridge.begin()
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            self._gateway.bridge.end()

    async def _say_goodbye(self) -> None:
        self._gateway.is_closing = True
        for task in self._gateway.tasks:
            task.cancel()
        if self._gateway.tasks:
            await asyncio.wait(self._gateway.tasks, timeout=GOODBYE_S)
        self._server.should_exit = True
