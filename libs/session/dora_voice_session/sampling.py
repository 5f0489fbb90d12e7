"""How the next token of a reply is chosen. Pure numpy."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from dora_voice_session.schema import Generation

Logits = NDArray[np.float32]


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
        tokens, probabilities = self._likeliest(logits)
        return int(self._random.choice(tokens, p=probabilities))

    def _likeliest(self, logits: Logits) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The tokens that top_k and top_p leave, likeliest first, and their probabilities."""
        settings = self._generation
        tokens = np.argsort(-logits, kind="stable")[: settings.top_k or None]
        below_likeliest = logits[tokens].astype(np.float64) - logits[tokens[0]]
        with np.errstate(over="ignore"):
            probabilities = np.exp(below_likeliest / settings.temperature)
        probabilities /= probabilities.sum()
        # The one that reaches top_p is still in.
        kept = int(np.searchsorted(np.cumsum(probabilities), settings.top_p)) + 1
        tokens, probabilities = tokens[:kept], probabilities[:kept]
        return tokens, probabilities / probabilities.sum()


def _penalise(logits: Logits, tokens: NDArray[np.int64], penalty: float) -> None:
    """Makes `tokens` less likely, whatever the sign of their logits."""
    if penalty != 1:
        logits[tokens] = np.where(logits[tokens] > 0, logits[tokens] / penalty, logits[tokens] * penalty)
