"""How many threads a model is given here.

More can be slower: what looks like two cores may be the halves of one, and threads that sleep while they wait for each
other take long to wake up.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

Model = TypeVar("Model")

TRIES = 5
WORTH_IT = 0.9
"""The other nodes want the cores, too: more threads must do the same work in this part of the time."""


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def with_fewest_threads(make: Callable[[int], Model], work: Callable[[Model], object]) -> Model:
    """What `make` makes of 1 thread; or of 2, 4 … as long as twice as many do the work clearly faster."""
    threads, best = 1, make(1)
    while threads < cores():
        threads = min(2 * threads, cores())
        more = make(threads)
        if not _is_worth_it(lambda best=best: work(best), lambda more=more: work(more)):
            break
        best = more
    return best


def _is_worth_it(few: Callable[[], object], more: Callable[[], object]) -> bool:
    """They take turns, so that what else runs at the time disturbs both alike."""
    for first in (few, more):
        first()  # sets things up
    seconds = [(_seconds(few), _seconds(more)) for _ in range(TRIES)]
    with_few, with_more = map(statistics.median, zip(*seconds, strict=True))
    return with_more <= WORTH_IT * with_few


def _seconds(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before
