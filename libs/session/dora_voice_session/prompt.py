"""The token ids of a conversation that grows and is edited, without tokenising the past again. Pure.

A model may spell its reply in other tokens than the tokenizer would. So the tokens of what was prefilled
and generated are kept, with anchors in between; only the text after the last anchor that a new rendering
shares is tokenised. Templates begin and end a turn with control tokens, so that tokenising from an anchor
gives what tokenising the whole would give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dora_voice_session.prefix import common_prefix


class Anchor(NamedTuple):
    """The first `tokens` tokens spell exactly the first `chars` code points."""

    tokens: int
    chars: int


class Prompt(NamedTuple):
    """A rendered conversation."""

    text: str
    tokens: list[int]


class PromptTokens:
    def __init__(self, tokenize: Callable[[str], list[int]]) -> None:
        self._tokenize = tokenize
        self._text = ""
        self._tokens: list[int] = []
        self._anchors = [Anchor(0, 0)]

    def of(self, rendering: str) -> list[int]:
        """The token ids of a rendered conversation."""
        anchor = self._shared_anchors(rendering)[-1]
        return self._tokens[: anchor.tokens] + self._tokenize(rendering[anchor.chars :])

    def hold(self, text: str, tokens: Sequence[int], anchors: Sequence[Anchor]) -> None:
        """`tokens` spell `text`, which begins with a rendered conversation; `anchors`, ascending, are places in it."""
        shared = [anchor for anchor in self._shared_anchors(text) if anchor < anchors[0]]
        self._anchors, self._text, self._tokens = [*shared, *anchors], text, list(tokens)

    def copy(self) -> PromptTokens:
        other = PromptTokens(self._tokenize)
        other._text, other._tokens, other._anchors = self._text, list(self._tokens), list(self._anchors)
        return other

    def _shared_anchors(self, text: str) -> list[Anchor]:
        shared = common_prefix(self._text, text)
        return [anchor for anchor in self._anchors if anchor.chars <= shared]
