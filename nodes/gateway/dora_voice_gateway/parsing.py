"""A client's JSON → a message, or an error that says which field, what was found, and what was expected."""

from __future__ import annotations

import reprlib
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from dora_voice_gateway.errors import ClientError

T = TypeVar("T")


def parse(kinds: TypeAdapter[T], document: str | bytes) -> T:
    """Raises ClientError for the first field that can't be read."""
    if isinstance(document, bytes):
        raise ClientError("bad_request", f"a binary message of {len(document)} bytes: expected a JSON document")
    try:
        return kinds.validate_json(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(step) for step in first["loc"]) or "document"
        found = "" if first["type"] == "missing" else f", found {reprlib.repr(first['input'])}"
        raise ClientError("bad_request", f"{where}: {first['msg']}{found}") from error
    except RecursionError as error:
        raise ClientError("bad_request", "document: expected less nesting") from error
