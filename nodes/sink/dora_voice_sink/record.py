"""The journal of a conversation, read again: whole lines only, whatever happened to the file."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from dora_voice.messages import Segment
from dora_voice_sink.files import JOURNAL

LATEST_S = 10_000_000
"""Four months. A later time is a mistake, and no axis can show it."""

UNSHOWABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class ReportError(Exception):
    """Nothing can be reported. One line: the input, its value, and what was expected."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of conversation.jsonl. A value of the wrong type counts as missing."""

    t_s: float
    segment: Segment
    event: str
    values: dict[str, Any] = field(default_factory=dict)

    def text(self, key: str) -> str | None:
        """Characters that no page can show become spaces, one for one: positions in the text stay right."""
        value = self.values.get(key)
        return UNSHOWABLE.sub(" ", value) if isinstance(value, str) else None

    def number(self, key: str) -> float | None:
        value = self.values.get(key)
        return float(value) if _is_number(value) and 0 <= value <= LATEST_S * 1e6 else None


def read_journal(folder: Path) -> tuple[list[Entry], list[str]]:
    """The entries in order of time, and remarks on what couldn't be read. Raises ReportError."""
    path = folder / JOURNAL
    if not folder.is_dir():
        raise ReportError(f"OUT_DIR={str(folder)!r}: no such folder; expected one that the sink wrote")
    try:
        written = path.read_bytes()
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror or error}; expected the sink's journal there") from error
    lines = [line for line in written.decode("utf-8", "replace").split("\n") if line.strip()]
    entries = [_entry(line) for line in lines]
    torn = [number for number, entry in enumerate(entries, 1) if entry is None]
    whole = [entry for entry in entries if entry is not None]
    return sorted(whole, key=lambda entry: entry.t_s), _remarks(torn, len(lines))


def _entry(line: str) -> Entry | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    t_s, session_id = values.pop("t_s", None), values.pop("session_id", None)
    segment_id, event = values.pop("segment_id", None), values.pop("event", None)
    is_whole = isinstance(session_id, str) and isinstance(event, str) and type(segment_id) is int
    if not (is_whole and _is_number(t_s) and 0 <= t_s <= LATEST_S):
        return None
    # A lone surrogate has no file name; the sink can't have written one for it.
    segment = Segment(session_id.encode("utf-8", "replace").decode(), segment_id)
    return Entry(float(t_s), segment, event, values)


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _remarks(torn: list[int], lines: int) -> list[str]:
    if torn == [lines]:
        return ["The journal's last line is torn: the sink was writing it when it was stopped."]
    if torn:
        numbers = ", ".join(map(str, torn[:5])) + (" …" if len(torn) > 5 else "")
        return [f"Of the journal's {lines} lines {len(torn)} can't be read and are left out (line {numbers})."]
    return []
