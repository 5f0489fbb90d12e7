"""What a session needs of a language model. Torch-free; `hf_model.py` has the real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from dora_voice_session.schema import Part


class TemplateMessage(TypedDict):
    """As chat templates take them."""

    role: str
    content: str | list[Part]
    """Text alone, or texts and pictures in their order."""


class Model(Protocol):
    """A causal language model. What a cache is, only the model knows.

    A token is its number in the vocabulary, or a `PictureToken` if the model takes pictures.
    """

    can_crop: bool
    """Whether its caches can go back. Others (sliding window, recurrent) are replayed from the tokens."""

    def new_cache(self) -> Any:
        """A cache of no tokens."""
        ...

    def extend(self, cache: Any, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Appends at least one token to the cache; the logits of the token after them, shape (vocabulary,)."""
        ...

    def crop(self, cache: Any, length: int) -> None:
        """Takes the cache back to its first `length` tokens. Only if `can_crop`."""
        ...

    def fork(self, cache: Any) -> Any:
        """A cache of the same tokens; from here on the two know nothing of each other."""
        ...

    def cache_length(self, cache: Any) -> int:
        """How many tokens the cache holds."""
        ...

    def cache_bytes(self, tokens: int) -> int:
        """Memory that a cache of so many tokens takes."""
        ...

    def held_bytes(self, cache: Any) -> int:
        """Memory that this cache takes; more than its tokens need, if it was cropped."""
        ...

    def offload(self, cache: Any) -> Any | None:
        """The cache in memory of another kind, where it costs nothing that is scarce; None if there is none."""
        ...

    def restore(self, offloaded: Any) -> Any:
        """The cache that `offload` was given."""
        ...


class ChatModel(Model, Protocol):
    """A model with its text side."""

    end_tokens: frozenset[int]
    """Any of these ends a reply."""
    special_texts: tuple[str, ...]
    """Spellings that the tokenizer turns into control tokens."""
    most_positions: int | None
    """Longest text in tokens, if the model has a limit."""
    template_switches: frozenset[str]
    """Which of `enable_thinking` and `use_tts_template` the chat template knows."""
    takes_pictures: bool
    limits_slices: bool
    """Whether a picture's `max_slice_nums` holds."""

    def render(
        self, messages: Sequence[TemplateMessage], *, add_generation_prompt: bool = True, **switches: bool
    ) -> str:
        """The conversation in the model's own chat template. Raises what the template raises.

        add_generation_prompt: goes on to where the model's reply begins.
        """
        ...

    def tokenize(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, without control tokens; torn characters come out as U+FFFD."""
        ...
