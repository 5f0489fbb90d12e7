"""A chat model without torch: its logits follow from exactly the tokens that its cache holds."""

from __future__ import annotations

import re
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

START, END = 1, 2
EMOJI = "🙂".encode()
FIRST_BYTE = 3
WORDS = (" the", "the", "é!", "ab", "abc", " a")
FIRST_WORD = FIRST_BYTE + 256
VOCABULARY = FIRST_WORD + len(WORDS)
SPELLINGS = {"<s>": START, "</s>": END} | {word: FIRST_WORD + i for i, word in enumerate(WORDS)}
PIECES = re.compile("|".join(map(re.escape, sorted(SPELLINGS, key=len, reverse=True))) + "|.", re.DOTALL)
BYTES = (
    {START: b"<s>", END: b"</s>", 0: b""}
    | {FIRST_BYTE + byte: bytes([byte]) for byte in range(256)}
    | {FIRST_WORD + i: word.encode() for i, word in enumerate(WORDS)}
)

Template = Callable[..., str]


def plain_template(messages: Sequence[Any], *, add_generation_prompt: bool, **_: bool) -> str:
    said = "".join(f"<s>{message['role'][0]}:{message['content']}</s>" for message in messages)
    return said + ("<s>a:" if add_generation_prompt else "")


class Cache(list[int]):
    """The tokens themselves; unlike a list, it can be referred to weakly."""


class FakeModel:
    """Satisfies `ChatModel`. A token per byte, except for WORDS; a token takes 10 bytes of cache."""

    end_tokens = frozenset({END})
    special_texts = ("<s>", "</s>")
    most_positions = None
    template_switches = frozenset({"enable_thinking"})
    takes_pictures = limits_slices = False

    def __init__(
        self,
        can_crop: bool = True,
        can_offload: bool = False,
        replies: Sequence[str | list[int]] = (),
        template: Template = plain_template,
    ) -> None:
        self.can_crop = can_crop
        self.can_offload = can_offload
        self.replies = list(replies)
        """What it says one after the other; without them, whatever the logits happen to be."""
        self.template = template
        self.slices: list[int] = []
        self.calls: Counter[str] = Counter()
        self.fails_at: tuple[str, int] | None = None
        """The name of a method, and which call of it fails."""
        self._caches: list[weakref.ref[Cache]] = []

    @property
    def caches(self) -> list[Cache]:
        """Those that somebody still has, without those that went elsewhere."""
        return [cache for each in self._caches if (cache := each()) is not None]

    def new_cache(self) -> Cache:
        return self._tracked(Cache())

    def extend(self, cache: Cache, tokens: Sequence[int]) -> NDArray[np.float32]:
        assert tokens
        cache += tokens[:-1]
        self._called("extend")
        cache.append(tokens[-1])
        self.slices.append(len(tokens))
        return self._scripted(cache) if self.replies else logits_after(cache)

    def crop(self, cache: Cache, length: int) -> None:
        assert self.can_crop
        assert length < len(cache)
        del cache[length + 1 :]
        self._called("crop")
        del cache[length:]

    def fork(self, cache: Cache) -> Cache:
        self._called("fork")
        return self._tracked(Cache(cache))

    def cache_length(self, cache: Cache) -> int:
        return len(cache)

    def cache_bytes(self, tokens: int) -> int:
        return 10 * tokens

    def held_bytes(self, cache: list[int]) -> int:
        return 10 * len(cache)

    def offload(self, cache: Cache) -> Any | None:
        self._called("offload")
        return ("away", Cache(cache)) if self.can_offload else None

    def restore(self, offloaded: Any) -> Any:
        self._called("restore")
        return self._tracked(offloaded[1])

    def render(self, messages: Sequence[Any], *, add_generation_prompt: bool = True, **switches: bool) -> str:
        self._called("render")
        assert switches.keys() <= self.template_switches
        return self.template(messages, add_generation_prompt=add_generation_prompt, **switches)

    def tokenize(self, text: str) -> list[int]:
        self._called("tokenize")
        return tokenize(text)

    def decode(self, tokens: Sequence[int]) -> str:
        self._called("decode")
        return spell([token for token in tokens if token not in (START, END)])

    def _tracked(self, cache: Cache) -> Cache:
        self._caches = [each for each in self._caches if each() is not None] + [weakref.ref(cache)]
        return cache

    def _called(self, name: str) -> None:
        self.calls[name] += 1
        if self.fails_at == (name, self.calls[name]):
            raise MemoryError(f"no memory for {name}")

    def _scripted(self, cache: Cache) -> NDArray[np.float32]:
        """The replies are given in turn: which one is told by how many the cache has already."""
        begins = [i for i in range(len(cache)) if cache[i : i + 3] == tokenize("<s>a:")]
        done = cache[begins[-1] + 3 :] if begins else []
        reply = self.replies[(len(begins) - 1) % len(self.replies)]
        tokens = [*(tokenize(reply) if isinstance(reply, str) else reply), END]
        logits = np.zeros(VOCABULARY, np.float32)
        logits[tokens[len(done)] if len(done) < len(tokens) else END] = 9
        return logits


def tokenize(text: str) -> list[int]:
    tokens = []
    for piece in PIECES.findall(text):
        tokens += [SPELLINGS[piece]] if piece in SPELLINGS else [FIRST_BYTE + byte for byte in piece.encode()]
    return tokens


def spell(tokens: Sequence[int]) -> str:
    """The text of the tokens, with control tokens."""
    return b"".join(BYTES[token] for token in tokens).decode("utf-8", "replace")


def logits_after(tokens: Sequence[int]) -> NDArray[np.float32]:
    """Like random ones, but what comes is text: letters mostly, and now and then an emoji, byte by byte."""
    seed = zlib.crc32(np.asarray(tokens, np.int32).tobytes())
    logits = np.random.default_rng(seed).standard_normal(VOCABULARY, np.float32)
    logits[FIRST_BYTE + ord("a") : FIRST_BYTE + ord("z")] += 2
    logits[[FIRST_BYTE + ord(" "), FIRST_BYTE + EMOJI[0], END, *range(FIRST_WORD, VOCABULARY)]] += 2
    logits[[0, START, *range(FIRST_BYTE + 128, FIRST_BYTE + EMOJI[0]), *range(FIRST_BYTE + 241, FIRST_WORD)]] = -9
    for byte, following in pairwise(EMOJI):
        if tokens[-1] == FIRST_BYTE + byte:
            logits[FIRST_BYTE + following] = 9
    return logits
