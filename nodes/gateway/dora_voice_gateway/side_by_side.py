"""A client is read all the time, also while it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def side_by_side(*works: Coroutine[Any, Any, None]) -> None:
    """Until the first of them ends, or fails: then the others end, too."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
