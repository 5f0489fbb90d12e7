"""Timing on a noisy machine: rivals take turns in one process, and medians are compared."""

from __future__ import annotations

import ctypes
import json
import math
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dora_voice.threads import cores


def interleaved_s(rivals: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median seconds of each rival; after one round that doesn't count they run in turns, to and fro."""
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    for i in range(rounds + 1):
        for name, run in list(rivals.items())[:: -1 if i % 2 else 1]:
            began_s = time.perf_counter()
            run()
            if i:
                taken[name].append(time.perf_counter() - began_s)
    return {name: statistics.median(times) for name, times in taken.items()}


def resident_mb() -> float:
    """Of this process, without what it has freed already."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def machine() -> dict[str, Any]:
    """Where and when, on what, and how busy it is."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": cores(),
        "load average": [round(load, 2) for load in os.getloadavg()],
        **{name: version(name) for name in ("torch", "transformers")},
    }


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    value: float
    unit: str
    limit: str = ""
    """What was promised, as text; empty if nothing was."""
    is_kept: bool | None = None


class Report:
    """`header` says what was measured on what."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        self.header = header
        self.rows: list[Row] = []
        for name, value in header.items():
            print(f"{name}: {value}", flush=True)

    def add(self, what: str, value: float, unit: str) -> None:
        self._show(Row(what, value, unit))

    def judge(
        self, what: str, value: float, unit: str, *, at_most: float = math.inf, at_least: float = -math.inf
    ) -> None:
        limit = f"≤ {at_most:g}" if at_most < math.inf else f"≥ {at_least:g}"
        self._show(Row(what, value, unit, limit, at_least <= value <= at_most))

    def title(self, text: str) -> None:
        print(f"\n{text}", flush=True)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"header": self.header, "rows": [asdict(row) for row in self.rows]}, indent=1))
        print(f"\n{path}")

    def _show(self, row: Row) -> None:
        self.rows.append(row)
        verdict = {None: "", True: f"  {row.limit}", False: f"  {row.limit}  MISSED"}[row.is_kept]
        print(f"  {row.what:<66} {row.value:10.4g} {row.unit:<8}{verdict}", flush=True)
