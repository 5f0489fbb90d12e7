"""How the next token of a reply is chosen. Pure numpy."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from dora_voice_session.schema import Generation

Logits = NDArray[np.float32]

FEW = 256
"""Tokens among which those that reach `top_p` are looked for at first. As a rule there they are."""


class Sampler:
    """Chooses by one `Generation`; greedy, and so deterministic, at temperature 0."""

    def __init__(self, generation: Generation, end_tokens: Collection[int]) -> None:
        self._generation = generation
        self._ends = np.asarray(sorted(end_tokens), np.int64)
        self._random = np.random.default_rng(generation.seed)

    def choose(self, logits: Logits, reply: Sequence[int], *, may_end: bool = True) -> int:
        """The next token. `logits` has shape (vocabulary,); `reply` is what was chosen so far."""
        logits = logits.copy()
        _penalise(logits, np.unique(np.asarray(reply, np.int64)), self._generation.repetition_penalty)
        _penalise(logits, self._ends, self._generation.length_penalty)
        if not may_end:
            logits[self._ends] = -np.inf
        if self._generation.temperature == 0:
            return int(np.argmax(logits))
        tokens, probabilities = candidates(logits, self._generation)
        return int(self._random.choice(tokens, p=probabilities))


def candidates(logits: Logits, generation: Generation) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The tokens that `top_k`, and then `top_p`, leave to draw from, and their probabilities at the temperature.

    Of equally likely tokens the first are left. A vocabulary is long: it is sorted only as far as it has to be.
    """
    is_short = 0 < generation.top_k < len(logits)
    tokens = _likeliest(logits, generation.top_k) if is_short else np.arange(len(logits))
    logits = logits[tokens]
    weights = _weights(logits, generation.temperature)
    if generation.top_p < 1:
        kept = _nucleus(logits, weights, generation.top_p)
        tokens, weights = tokens[kept], weights[kept]
    return tokens, weights / weights.sum()


def _weights(logits: Logits, temperature: float) -> NDArray[np.float64]:
    """Proportional to the probabilities; the largest is 1."""
    below_likeliest = logits.astype(np.float64) - logits.max()
    with np.errstate(over="ignore"):
        return np.exp(below_likeliest / temperature)


def _nucleus(logits: Logits, weights: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Where the fewest tokens are that have this probability together, likeliest first."""
    needed, few = top_p * weights.sum(), FEW
    while True:
        kept = _likeliest(logits, few)
        reached = np.cumsum(weights[kept])
        if reached[-1] >= needed or few >= len(logits):
            # The one that reaches it is still in.
            return kept[: np.searchsorted(reached, needed) + 1]
        few *= 16


def _likeliest(logits: Logits, count: int) -> NDArray[np.int64]:
    """Where the `count` largest are, largest first, and first those that come first. All, if there are no more."""
    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    least = np.partition(logits, -count)[-count]
    found = np.flatnonzero(logits >= least)
    return found[np.argsort(-logits[found], kind="stable")[:count]]


def _penalise(logits: Logits, tokens: NDArray[np.int64], penalty: float) -> None:
    """Makes `tokens` less likely, whatever the sign of their logits."""
    if penalty != 1:
        logits[tokens] = np.where(logits[tokens] > 0, logits[tokens] / penalty, logits[tokens] * penalty)
