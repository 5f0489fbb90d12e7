"""Long computations as generators: between two yields other work goes on, and closing one leaves all in order."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Y = TypeVar("Y")
R = TypeVar("R")
Work = Generator[Y, None, R]


def run(work: Work[Any, R]) -> R:
    """Runs to the end, and returns what comes of it."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value
