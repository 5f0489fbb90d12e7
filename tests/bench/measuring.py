"""Timing on a noisy machine: rivals take turns in one process, and medians are compared."""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


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


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    value: float
    unit: str
    limit: str = ""
    """What was promised, as text; empty if nothing was."""
    is_kept: bool | None = None


class Report:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, what: str, value: float, unit: str) -> None:
        self._show(Row(what, value, unit))

    def judge(self, what: str, value: float, unit: str, *, at_most: float = float("inf"), at_least: float = 0) -> None:
        limit = f"≥ {at_least:g}" if at_least else f"≤ {at_most:g}"
        self._show(Row(what, value, unit, limit, at_least <= value <= at_most))

    def title(self, text: str) -> None:
        print(f"\n{text}", flush=True)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps([asdict(row) for row in self.rows], indent=1))
        print(f"\n{path}")

    def _show(self, row: Row) -> None:
        self.rows.append(row)
        verdict = {None: "", True: f"  {row.limit}", False: f"  {row.limit}  MISSED"}[row.is_kept]
        print(f"  {row.what:<66} {row.value:10.4g} {row.unit:<8}{verdict}", flush=True)
