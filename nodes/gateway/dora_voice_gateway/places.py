"""A limited number of places, given in the order of asking. Those who wait are told where they stand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Told = Callable[[int], Awaitable[None]]
"""Called with the position in line, from 1, when that has changed."""


class Places:
    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Event] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def take(self, tell: Told) -> AsyncIterator[None]:
        if self._free and not self._waiting:
            self._free -= 1
        else:
            await self._wait(tell)
        try:
            yield
        finally:
            self._free += 1
            self._move_up()

    async def _wait(self, tell: Told) -> None:
        """Until the first in line has a place, which is taken then."""
        moved = asyncio.Event()
        self._waiting.append(moved)
        try:
            while not (self._free and self._waiting[0] is moved):
                await tell(self._waiting.index(moved) + 1)
                moved.clear()
                # Places may have become free while the client was told.
                if not (self._free and self._waiting[0] is moved):
                    await moved.wait()
            self._free -= 1
        finally:
            self._waiting.remove(moved)
            self._move_up()

    def _move_up(self) -> None:
        for moved in self._waiting:
            moved.set()
