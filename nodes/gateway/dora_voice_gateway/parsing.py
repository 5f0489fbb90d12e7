"""A client's JSON → a message, or an error that says which field, what was found, and what was expected."""

from __future__ import annotations

import reprlib
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from dora_voice_gateway.errors import ClientError
from dora_voice_session import requests

T = TypeVar("T")

MOST_COMMAS = 100_000
"""Each value that is wrong costs a kilobyte and 10 µs, for which all clients wait: megabytes of them, minutes."""
LONGEST_WHY = 300


def parse(kinds: TypeAdapter[T], document: str | bytes) -> T:
    """Raises ClientError for the first field that can't be read."""
    if isinstance(document, bytes):
        raise ClientError("bad_request", f"a binary message of {len(document)} bytes: expected a JSON document")
    if (commas := document.count(",")) > MOST_COMMAS:
        raise ClientError("too_large", f"document: {commas} commas: expected at most {MOST_COMMAS}")
    try:
        return kinds.validate_json(document)
    except ValidationError as error:
        # Where a field may be several things, the deepest is about what it was meant to be.
        first = max(error.errors(include_url=False, include_context=False), key=lambda each: len(each["loc"]))
        steps = [step for each in first["loc"] if not (step := str(each)).startswith("list[")]
        where = ".".join(steps) or "document"
        found = "" if first["type"] == "missing" else f", found {reprlib.repr(first['input'])}"
        raise ClientError("bad_request", _short(f"{where}: {first['msg']}") + found) from error


def request_id_of(message: str | bytes) -> str | None:
    """Of a message that may be no request at all; None if it has none that could be one."""
    return requests.request_id_of(message) if isinstance(message, str) else None


def _short(text: str) -> str:
    """Without what the client wrote, if it is long."""
    return text if len(text) <= LONGEST_WHY else f"{text[:LONGEST_WHY]}…"
