"""Why a client's message, or its connection, can't be served."""

from __future__ import annotations

from typing import Literal

from dora_voice_session import refused

OwnCode = Literal[
    "closing",
    "failed",
    "no_speech",
    "rate_limited",
    "stopped",
    "timeout",
    "too_large",
    "unavailable",
]
"""closing: the server is being stopped. failed: a node could not do it. no_speech: a recording in which nobody speaks.
rate_limited: too many requests. stopped: it waited behind one that was stopped. timeout: it took too long.
too_large: beyond a limit, which is named. unavailable: a node that it needs has crashed."""
Code = OwnCode | refused.Code


class ClientError(Exception):
    """`code` is stable; the text names the field or the limit, the value, and what was expected."""

    def __init__(self, code: Code, why: str) -> None:
        super().__init__(why)
        self.code: Code = code


class GoneError(Exception):
    """The client is not there any more, or doesn't read what it is sent."""
