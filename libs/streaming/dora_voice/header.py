"""The metadata keys of the wire, to and from typed values (DESIGN §2).

Written strictly: every value is a string. Read leniently: dora's typed scalars and any letter
case of true and false are understood too, and unknown keys are somebody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

LONGEST_ID = 256
LARGEST_NATURAL = 2**63 - 1
LARGEST_READ = 2**62
"""Room for a node to count on from what it has read."""


class WireError(ValueError):
    """A message can't be read or written. Names the port, the key, the value, and what was expected."""


class Kind(NamedTuple):
    """How one sort of value is checked when written, and read."""

    expected: str
    read: Callable[[Any], Any]
    """Returns None for what it can't read."""


def _read_natural(raw: Any) -> int | None:
    if isinstance(raw, str):
        digits = raw.strip()
        raw = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= LONGEST_ID else None
    return raw if type(raw) is int and 0 <= raw <= LARGEST_NATURAL else None


def _read_flag(raw: Any) -> bool | None:
    if isinstance(raw, str):
        return {"true": True, "false": False}.get(raw.strip().lower())
    return raw if isinstance(raw, bool) else None


def _read_id(raw: Any) -> str | None:
    text = _read_text(raw)
    return text if text and len(text) <= LONGEST_ID else None


def _read_text(raw: Any) -> str | None:
    if isinstance(raw, (str, int, float)):
        return str(raw)
    return None


NATURAL = Kind("a whole number from 0", _read_natural)
FLAG = Kind('"true" or "false"', _read_flag)
ID = Kind(f"1 to {LONGEST_ID} characters", _read_id)
TEXT = Kind("text", _read_text)

KEYS: Mapping[str, Kind] = {
    "session_id": ID,
    "segment_id": NATURAL,
    "seq": NATURAL,
    "fin": FLAG,
    "flush": FLAG,
    "speculative": FLAG,
    "finish": FLAG,
    "error": TEXT,
    "rejected": TEXT,
    "sample_rate": NATURAL,
    "audio_ms": NATURAL,
    "text_start": NATURAL,
    "text_end": NATURAL,
    "language": TEXT,
    "continues": NATURAL,
}


def read(port: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of ours that `metadata` has, typed. Raises WireError for the first unreadable one."""
    values = {}
    for key, kind in KEYS.items():
        if key not in metadata:
            continue
        values[key] = kind.read(metadata[key])
        if values[key] is None or (kind is NATURAL and values[key] > LARGEST_READ):
            raise WireError(f"input {port!r}: {key}={metadata[key]!r}: expected {kind.expected}")
    return values


def write(port: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Metadata of strings. None is left out, and so is a false flag other than `fin`.

    Raises WireError for an unknown key and for a value that `read` would not give back unchanged.
    """
    metadata = {}
    for key, value in values.items():
        if value is None or (value is False and key != "fin"):
            continue
        if key not in KEYS:
            raise WireError(f"output {port!r}: unknown key {key}={value!r}: expected one of {', '.join(KEYS)}")
        written = str(value).lower() if isinstance(value, bool) else str(value)
        read_back = KEYS[key].read(written)
        if read_back != value or type(read_back) is not type(value):
            raise WireError(f"output {port!r}: {key}={value!r}: expected {KEYS[key].expected}")
        metadata[key] = written
    return metadata
