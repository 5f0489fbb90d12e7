"""Token ids and the KV cache of exactly those tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dora_voice_session.model import Model
from dora_voice_session.prefix import common_prefix
from dora_voice_session.work import Work

SLICE_TOKENS = 32
"""Tokens computed between two yields: about 30-50 ms of the default model on two cores."""


class CachedTokens:
    """After every operation, also one that failed, `tokens` and the cache hold exactly the same."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._cache: Any = model.new_cache()
        self._offloaded: Any = None
        self._offloaded_bytes = 0
        self._lost: list[int] = []
        """Tokens that were computed once, until the cache was given up."""
        self.tokens: list[int] = []
        self.logits: NDArray[np.float32] | None = None
        """Of the token after the last, shape (vocabulary,), where it is known."""

    def __len__(self) -> int:
        """How many tokens the cache itself says that it holds; away it can't be asked."""
        return len(self.tokens) if self.is_away else self._model.cache_length(self._cache)

    @property
    def is_away(self) -> bool:
        """Whether the cache was evicted to where it can come back from."""
        return self._offloaded is not None

    def ever_shared(self, tokens: list[int]) -> int:
        """How many tokens at the beginning of `tokens` have been computed here before."""
        return max(common_prefix(self.tokens, tokens), common_prefix(self._lost, tokens))

    @property
    def nbytes(self) -> int:
        """Memory that the cache takes; nothing while it is away."""
        return 0 if self.is_away or not self.tokens else self._model.held_bytes(self._cache)

    @property
    def away_bytes(self) -> int:
        """Memory that the cache took before it went away."""
        return self._offloaded_bytes if self.is_away else 0

    def hold(self, tokens: list[int]) -> Work[None, NDArray[np.float32]]:
        """Holds exactly `tokens`, at least one, in the end. Yields between two slices.

        Returns the logits of the token after them.
        """
        while True:
            # Again after each yield: whatever others have done meanwhile, this list is what comes of it.
            self.crop_to(tokens)
            if len(self.tokens) == len(tokens) and self.logits is not None:
                return self.logits
            logits = self.extend(tokens[len(self.tokens) :][:SLICE_TOKENS])
            if len(self.tokens) == len(tokens):
                return logits
            yield

    def crop_to(self, tokens: list[int]) -> None:
        """Keeps what is held of the beginning of `tokens`; not all of them if the logits after that aren't known."""
        shared = common_prefix(self.tokens, tokens)
        is_known = len(self.tokens) == shared and self.logits is not None
        self.keep(shared if is_known or shared < len(tokens) else max(0, shared - 1))

    def keep(self, length: int) -> None:
        """Holds at most the first `length` tokens. A cache that can't go back holds none then."""
        if length >= len(self.tokens):
            return
        del self.tokens[length:]
        self.logits = None
        if not self._model.can_crop or length == 0:
            self.lose()
        elif not self.is_away:
            with self._whole_or_nothing():
                self._model.crop(self._cache, length)

    def extend(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Appends at least one token. Returns, and keeps, the logits of the one after them."""
        self._bring_back()
        with self._whole_or_nothing():
            self.logits = self._model.extend(self._cache, tokens)
        self.tokens += tokens
        if len(self.tokens) >= len(self._lost):
            self._lost = []
        return self.logits

    def clear(self) -> None:
        self.tokens, self.logits = [], None
        self._cache, self._offloaded, self._lost = self._model.new_cache(), None, []

    def evict(self) -> bool:
        """Gives the cache's memory free. True: it went elsewhere, and comes back by itself; else it is lost."""
        if self.is_away or not self.tokens:
            return self.is_away
        self._offloaded_bytes = self.nbytes
        self._offloaded = self._model.offload(self._cache)
        if not self.is_away:
            self.lose()
            return False
        self._cache = None
        return True

    def lose(self) -> None:
        """Gives the cache up, wherever it is."""
        lost = self._lost if self._lost[: len(self.tokens)] == self.tokens else self.tokens
        self.clear()
        self._lost = lost

    def fork(self) -> CachedTokens:
        """The same tokens; from here on the two know nothing of each other. What is away is computed again there."""
        other = CachedTokens(self._model)
        if self.is_away:
            other._lost = list(self.tokens)
        else:
            other._cache = self._model.fork(self._cache)
            other._lost, other.tokens, other.logits = list(self._lost), list(self.tokens), self.logits
        return other

    def become(self, other: CachedTokens) -> None:
        """Takes over what the other holds, which is of no use then."""
        self._cache, self._offloaded, self._lost = other._cache, other._offloaded, other._lost
        self._offloaded_bytes = other._offloaded_bytes
        self.tokens, self.logits = other.tokens, other.logits

    def _bring_back(self) -> None:
        if not self.is_away:
            return
        self._cache, self._offloaded = self._model.restore(self._offloaded), None
        if self._model.cache_length(self._cache) > len(self.tokens):
            with self._whole_or_nothing():
                self._model.crop(self._cache, len(self.tokens))

    @contextmanager
    def _whole_or_nothing(self) -> Iterator[None]:
        """What fails half-way has been done in some of the cache's layers, and not in others."""
        try:
            yield
        except BaseException:
            self.clear()
            raise
