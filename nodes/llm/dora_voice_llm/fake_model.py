"""A chat model without weights, for tests of whole graphs: it repeats what the user said, word by word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dora_voice_session.model import TemplateMessage

STORY = (
    "Once upon a time there was a small robot who lived in a lighthouse by the sea. Every evening it climbed the "
    "long stairs and lit the lamp. One night a storm put out all the lights on the coast, but the robot carried "
    "its own battery up the tower and kept the lamp burning until the morning. The sailors came home safely, and "
    "from then on they called the robot their friend."
)
TURN = re.compile(r"<(\w+)>(.*?)(</>|$)", re.DOTALL)
END = "</>"


class FakeModel:
    """Satisfies `ChatModel`. Its tokens are words, numbered as they come; its cache is the list of them."""

    special_texts: tuple[str, ...] = ("<system>", "<user>", "<assistant>", END)
    most_positions: int | None = None
    can_crop: bool = True
    template_switches: frozenset[str] = frozenset()
    takes_pictures: bool = False
    limits_slices: bool = False

    def __init__(self) -> None:
        self._words: list[str] = []
        self._numbers: dict[str, int] = {}
        self.end_tokens: frozenset[int] = frozenset(self.tokenize(END))

    def render(
        self, messages: Sequence[TemplateMessage], *, add_generation_prompt: bool = True, **switches: bool
    ) -> str:
        said = "".join(f"<{message['role']}>{message['content']}{END}" for message in messages)
        return said + ("<assistant>" if add_generation_prompt else "")

    def tokenize(self, text: str) -> list[int]:
        return [self._number(word) for word in re.findall(r"<\w*>|</>|\s*[^\s<]+|\s+|<", text)]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(word for token in tokens if (word := self._words[token]) not in self.special_texts)

    def new_cache(self) -> list[int]:
        return []

    def extend(self, cache: list[int], tokens: Sequence[int]) -> NDArray[np.float32]:
        cache += tokens
        *_, (_, user, _), (_, reply, _) = [("", "", ""), *TURN.findall("".join(self._words[token] for token in cache))]
        rest = self.tokenize(self.answer(user) + END)[len(self.tokenize(reply)) :]
        logits = np.zeros(len(self._words), np.float32)
        logits[rest[:1]] = 1
        return logits

    def crop(self, cache: list[int], length: int) -> None:
        del cache[length:]

    def fork(self, cache: list[int]) -> list[int]:
        return list(cache)

    def cache_length(self, cache: list[int]) -> int:
        return len(cache)

    def cache_bytes(self, tokens: int) -> int:
        return 8 * tokens

    def held_bytes(self, cache: list[int]) -> int:
        return 8 * len(cache)

    def offload(self, cache: list[int]) -> Any | None:
        return None

    def restore(self, offloaded: Any) -> Any:
        return offloaded

    def answer(self, user: str) -> str:
        """What it says to these words of the user."""
        if "story" in user.lower():
            return STORY
        return f"You said: {user}" if user[-1:] in ".!?" else f"You said: {user}."

    def _number(self, word: str) -> int:
        if word not in self._numbers:
            self._numbers[word] = len(self._words)
            self._words.append(word)
        return self._numbers[word]
