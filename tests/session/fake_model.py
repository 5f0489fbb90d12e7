"""A model without torch: its logits follow from exactly the tokens that its cache holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 50


class FakeModel:
    def __init__(self, can_crop: bool = True) -> None:
        self.can_crop = can_crop
        self.fails_next = False
        self.slices: list[int] = []

    def new_cache(self) -> list[int]:
        return []

    def extend(self, cache: list[int], tokens: Sequence[int]) -> NDArray[np.float32]:
        if self.fails_next:
            self.fails_next = False
            cache += tokens[:-1]
            raise MemoryError("no memory in layer 7")
        cache += tokens
        self.slices.append(len(tokens))
        return logits_after(cache)

    def crop(self, cache: list[int], length: int) -> bool:
        if self.can_crop:
            del cache[length:]
        return self.can_crop

    def cache_length(self, cache: list[int]) -> int:
        return len(cache)


def logits_after(tokens: Sequence[int]) -> NDArray[np.float32]:
    return np.random.default_rng(list(tokens)).standard_normal(VOCABULARY, np.float32)
