"""What all clients share: limits, places, what the model takes, what is counted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dora_voice_gateway.admission import Door, RequestRate
from dora_voice_gateway.bridge import Bridge
from dora_voice_gateway.config import Config
from dora_voice_gateway.errors import ClientError, GoneError
from dora_voice_gateway.llm_session import LlmSession
from dora_voice_gateway.media import Limits
from dora_voice_gateway.metrics import Metrics
from dora_voice_gateway.places import Places
from dora_voice_session import requests
from dora_voice_session.schema import Usage

log = logging.getLogger("dora_voice.gateway")

MODEL_WAIT_S = 30.0
"""How long the llm node may take to say what its model is: longer than it needs to come back after a crash."""


class Gateway:
    def __init__(self, config: Config, bridge: Bridge) -> None:
        self.config = config
        self.bridge = bridge
        self.door = Door(config.gateway_token, frozenset(filter(None, config.origins.split("|"))))
        self.places = Places(config.places)
        self.voices = Places(config.voices)
        self.limits = Limits(config.audio_s, config.video_s, config.image_megapixels * 1e6)
        self.metrics = Metrics()
        self.tasks: set[asyncio.Task[None]] = set()
        """Of the clients that are connected."""
        self.is_closing = False
        self._model: requests.Model | None = None

    def request_rate(self) -> RequestRate:
        """Of one connection."""
        return RequestRate(self.config.requests_per_minute, time.monotonic)

    def llm_session(self, kind: str) -> LlmSession:
        return LlmSession(self.bridge, kind, self.config.request_s)

    async def model(self) -> requests.Model:
        """What the llm node's model is called, and what messages to it may hold, with what becomes text here."""
        if self._model is None:
            session = LlmSession(self.bridge, "gateway", MODEL_WAIT_S)
            try:
                described = await session.ask("model")
            finally:
                session.close()
            assert isinstance(described, requests.Model)
            films = {"video"} if "image" in described.parts else set()
            parts = sorted({*described.parts, "audio", *films})
            self._model = described.model_copy(update={"parts": parts})
        return self._model

    def count_tokens(self, usage: Usage) -> None:
        for kind in ("reused", "computed", "generated"):
            self.metrics.tokens.labels(kind).inc(getattr(usage, f"{kind}_tokens"))

    def count_unread(self, protocol: str, error: ClientError) -> None:
        """A message that was refused before anybody worked on it."""
        self.metrics.requests.labels(protocol, error.code).inc()
        log.info("%s message outcome=%s", protocol, error.code)

    @contextmanager
    def measured(self, protocol: str, request: str) -> Iterator[Measured]:
        """Counts a request, and writes its line in the log: no word of what was said."""
        measured = Measured()
        try:
            yield measured
        except ClientError as error:
            measured.outcome = error.code
            raise
        except (GoneError, asyncio.CancelledError):
            measured.outcome = "closing" if self.is_closing else "gone"
            raise
        except Exception as error:
            # The client waits for an answer, whatever is wrong here.
            log.exception("%s request failed", protocol)
            measured.outcome = "failed"
            raise ClientError("failed", "a fault of the gateway, which is in its log") from error
        finally:
            self.metrics.requests.labels(protocol, measured.outcome).inc()
            if measured.first_s is not None:
                self.metrics.first_output.labels(protocol).observe(measured.first_s)
            first = "-" if measured.first_s is None else f"{measured.first_s * 1000:.0f}"
            log.info(
                "%s request=%s outcome=%s first_output_ms=%s total_ms=%.0f",
                *(protocol, request, measured.outcome, first, measured.elapsed_s() * 1000),
            )


class Measured:
    """One request."""

    def __init__(self) -> None:
        self.outcome = "done"
        self.first_s: float | None = None
        self._began_s = time.monotonic()

    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def output(self) -> None:
        """Something of its reply is there."""
        if self.first_s is None:
            self.first_s = self.elapsed_s()
