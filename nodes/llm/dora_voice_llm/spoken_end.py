"""How a reply is chosen token by token, when its text may be sent, and where it ends. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

REPETITION_PENALTY = 1.1
"""A small model repeats itself in long replies, and a listener can't skip. Counts this reply's tokens only."""

SENTENCE_END = re.compile(r"(?:(?<!\d)\.|[!?…。！？])[\"'”’)]*\s*$")


def next_token(logits: NDArray[np.float32], reply: Sequence[int], forbidden: Collection[int] = ()) -> int:
    """The most likely token, those already in `reply` made less likely. `logits` has shape (vocabulary,)."""
    logits = logits.copy()
    used = np.unique(np.asarray(reply, np.int64))
    logits[used] = np.where(logits[used] > 0, logits[used] / REPETITION_PENALTY, logits[used] * REPETITION_PENALTY)
    logits[list(forbidden)] = -np.inf
    return int(np.argmax(logits))


def is_long_enough(text: str, tokens: int, most_tokens: int) -> bool:
    """A reply stops at its first sentence end after half of `most_tokens`, at the latest after all of them."""
    return tokens >= most_tokens or (2 * tokens >= most_tokens and SENTENCE_END.search(text) is not None)


class ReplyText:
    """The text of tokens as they come, never cut inside a character."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self.tokens: list[int] = []
        self.text = ""
        self.whole_tokens = 0
        """So many of the tokens spell exactly `text`."""

    def add(self, token: int) -> str:
        """The text that this token adds; empty while a character isn't whole yet."""
        self.tokens.append(token)
        decoded = self._decode(self.tokens)
        whole = decoded.rstrip("\ufffd")
        delta = whole[len(self.text) :]
        self.text += delta
        if whole == decoded:
            self.whole_tokens = len(self.tokens)
        return delta
