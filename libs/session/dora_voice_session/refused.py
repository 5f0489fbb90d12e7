"""Why a request can't be served."""

from __future__ import annotations

from typing import Literal

Code = Literal[
    "bad_request",
    "busy",
    "context_full",
    "no_memory",
    "nothing_to_answer",
    "too_many_sessions",
    "unknown_session",
    "unsupported_field",
    "unsupported_part",
]


class RefusedError(ValueError):
    """The request changes nothing. `code` is stable, the text says which field, its value, and what was expected."""

    def __init__(self, code: Code, why: str) -> None:
        super().__init__(why)
        self.code: Code = code
