"""How far two lists or texts are the same. All of the cache's bookkeeping comes down to this."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T", str, list[int])


def common_prefix(a: T, b: T) -> int:
    """How many elements the two have in common at the beginning."""
    same, differs = 0, min(len(a), len(b)) + 1
    # Halving, because comparing slices is a thousand times faster than comparing elements.
    while differs - same > 1:
        middle = (same + differs) // 2
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            differs = middle
    return same
