"""Messages to and from what dora carries: one Arrow array and a metadata dict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from dora_voice import header
from dora_voice.header import WireError
from dora_voice.messages import SOURCE_RATE_HZ, VERBS, Audio, Control, Message, Played, Text

SLOWEST_RATE_HZ, FASTEST_RATE_HZ = 8_000, 192_000

PAYLOADS: Mapping[type[Message], str] = {Audio: "samples", Text: "text", Control: "verb", Played: "samples"}


def to_arrow(message: Message) -> tuple[pa.Array, dict[str, str]]:
    """float32 samples, utf8[1] text or verb, int64[1] played samples; and metadata of strings."""
    payload_field = PAYLOADS[type(message)]
    payload = getattr(message, payload_field)
    if isinstance(message, Audio):
        array = pa.array(np.ascontiguousarray(payload, dtype=np.float32))
    elif isinstance(message, Played):
        array = pa.array([payload], pa.int64())
    else:
        array = pa.array([payload], pa.string())
    keys = {f.name: getattr(message, f.name) for f in fields(message) if f.name not in (payload_field, "port")}
    return array, header.write(message.port, keys)


def from_arrow(
    port: str, kind: type[Message], value: Any, metadata: Mapping[str, Any], rate_hz: int = SOURCE_RATE_HZ
) -> Message:
    """Reads what came in on `port`. Raises WireError when it can't be read as a `kind`.

    `rate_hz` is meant by audio that doesn't say its rate.
    """
    keys = header.read(port, metadata)
    known = {f.name for f in fields(kind)}
    keys = {key: value for key, value in keys.items() if key in known}
    if kind is Audio:
        return Audio(port=port, samples=_samples(port, value), **_with_sample_rate(port, keys, rate_hz))
    if kind is Played:
        return Played(port=port, samples=_only_value(port, value, "one int64 ≥ 0", pa.types.is_integer), **keys)
    text = _only_value(port, value, "one utf8 string", _is_utf8)
    if kind is Text:
        # A text that knows nothing of fragments is complete by itself.
        is_whole = not keys.keys() & {"seq", "fin", "finish"}
        return Text(port=port, text=text, **{"fin": is_whole, **keys})
    if text not in VERBS:
        raise WireError(f"input {port!r}: verb {text!r}: expected one of {', '.join(sorted(VERBS))}")
    return Control(port=port, verb=text, **keys)


def empty(port: str, kind: type[Message], rate_hz: int, **keys: Any) -> Message:
    """A message without content, for a `fin` that nothing else comes with."""
    if kind is Audio:
        return Audio(port=port, samples=np.zeros(0, np.float32), sample_rate=rate_hz, **keys)
    if kind is Played:
        return Played(port=port, samples=0, **keys)
    return Text(port=port, text="", **keys)


def size_bytes(message: Message) -> int:
    """About what a queued message holds in memory."""
    if isinstance(message, Audio):
        return message.samples.nbytes + 200
    return len(message.text) * 4 + 200 if isinstance(message, Text) else 200


def _samples(port: str, value: Any) -> np.ndarray:
    if not isinstance(value, pa.Array) or not pa.types.is_floating(value.type) or value.null_count:
        raise WireError(f"input {port!r}: value of type {_type_of(value)}: expected float32 samples without nulls")
    samples = value.to_numpy(zero_copy_only=False).astype(np.float32)
    if not np.isfinite(samples).all():
        raise WireError(f"input {port!r}: value holds NaN or infinite samples: expected float32 in [-1, 1]")
    return samples


def _with_sample_rate(port: str, keys: dict[str, Any], rate_hz: int) -> dict[str, Any]:
    rate = keys.setdefault("sample_rate", rate_hz)
    if not SLOWEST_RATE_HZ <= rate <= FASTEST_RATE_HZ:
        raise WireError(
            f"input {port!r}: sample_rate={rate}: expected {SLOWEST_RATE_HZ} to {FASTEST_RATE_HZ} samples per second"
        )
    return keys


def _only_value(port: str, value: Any, expected: str, is_type: Any) -> Any:
    is_readable = isinstance(value, pa.Array) and is_type(value.type) and len(value) == 1 and not value.null_count
    try:
        content = value[0].as_py() if is_readable else None
    except UnicodeDecodeError as error:
        raise WireError(f"input {port!r}: value is no UTF-8 ({error}): expected {expected}") from error
    if content is None or (isinstance(content, int) and content < 0):
        shown = f"{content}" if content is not None else _type_of(value)
        raise WireError(f"input {port!r}: value {shown}: expected {expected}")
    return content


def _is_utf8(data_type: pa.DataType) -> bool:
    return pa.types.is_string(data_type) or pa.types.is_large_string(data_type)


def _type_of(value: Any) -> str:
    return f"{value.type}[{len(value)}]" if isinstance(value, pa.Array) else type(value).__name__
