"""One conversation's token ids and the KV cache of exactly those tokens. Torch-free.

Everything is "prefill this list": what the list and the held tokens have in common at the beginning is
kept, the rest is cropped, and only the difference is computed. New turns, edited history and replies
cut to what was heard are all the same operation.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

SLICE_TOKENS = 32
"""Tokens computed between two checkpoints: about 30-45 ms of the default model on two cores."""


class Model(Protocol):
    """A causal language model. What a cache is, only the model knows."""

    def new_cache(self) -> Any:
        """A cache of no tokens."""
        ...

    def extend(self, cache: Any, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Appends at least one token to the cache; the logits of the token after them, shape (vocabulary,)."""
        ...

    def crop(self, cache: Any, length: int) -> bool:
        """Takes the cache back to its first `length` tokens. False, and unchanged, if this kind can't go back."""
        ...

    def cache_length(self, cache: Any) -> int:
        """How many tokens the cache holds."""
        ...


class Session:
    """After every operation, also one that failed or was closed, tokens and cache hold exactly the same."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._tokens: list[int] = []
        self._cache = model.new_cache()
        self.kept = 0
        """Tokens that the latest `prefill` found in place."""
        self.computed = 0
        """Tokens that the latest `prefill` has computed so far."""

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self._tokens)

    @property
    def cache_length(self) -> int:
        return self._model.cache_length(self._cache)

    def prefill(self, tokens: Sequence[int]) -> Generator[None, None, NDArray[np.float32]]:
        """Holds exactly `tokens` in the end, computed in slices with a yield between two of them.

        Returns the logits of the next token, shape (vocabulary,). Closed at a yield, the session holds the
        slices computed so far, so that the same call again computes only the rest. At least the last
        token is always computed, for its logits. Raises ValueError if there are no tokens.
        """
        if not tokens:
            raise ValueError("nothing to prefill: expected at least one token")
        self._crop(min(common_prefix(self._tokens, tokens), len(tokens) - 1))
        self.kept, self.computed = len(self._tokens), 0
        while True:
            upcoming = tokens[len(self._tokens) :][:SLICE_TOKENS]
            logits = self._extend(upcoming)
            self.computed += len(upcoming)
            if len(self._tokens) == len(tokens):
                return logits
            yield

    def append(self, token: int) -> NDArray[np.float32]:
        """One step of decoding: holds `token` too, and returns the logits of the one after it."""
        return self._extend([token])

    def _crop(self, length: int) -> None:
        if length < len(self._tokens) and not self._model.crop(self._cache, length):
            length = 0
            self._cache = self._model.new_cache()
        del self._tokens[length:]

    def _extend(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        try:
            logits = self._model.extend(self._cache, tokens)
        except BaseException:
            # Some layers may hold the new tokens already, others not.
            self._tokens, self._cache = [], self._model.new_cache()
            raise
        self._tokens += tokens
        return logits


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """How many elements the two have in common at the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
