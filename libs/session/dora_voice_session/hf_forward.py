"""Tokens through transformers' own code of a model, into a cache. Imported only where torch is there."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from dora_voice_session.hf_vision import Vision
from dora_voice_session.kv_cache import BlockCache, ForeignCache
from dora_voice_session.picture_token import PictureToken


class Forward:
    """The forward pass of one model, with caches of one kind. What it computes needs `torch.inference_mode`."""

    def __init__(self, model: Any, *, can_crop: bool, takes_slices: bool = True) -> None:
        """Raises ValueError if the model takes no cache.

        can_crop: keys and values go into a `BlockCache`; else transformers keeps what the model needs.
        takes_slices: several tokens at once may follow what is in the cache already.
        """
        self.model = model
        self.can_crop = can_crop
        self.vision: Vision | None = None
        """What the model sees, if it takes pictures."""
        self._takes_slices = takes_slices
        self._arguments = _arguments(model)

    def new_cache(self) -> BlockCache | ForeignCache:
        return BlockCache.for_model(self.model) if self.can_crop else ForeignCache()

    def extend(self, cache: Any, tokens: Sequence[int]) -> Any:
        """Appends at least one token. Returns the logits of the token after them, a tensor of shape (vocabulary,)."""
        if cache.length and not self._takes_slices:
            for token in tokens[:-1]:
                self._extend_once(cache, [token])
            tokens = tokens[-1:]
        return self._extend_once(cache, tokens)

    def _extend_once(self, cache: Any, tokens: Sequence[int]) -> Any:
        inputs = self._inputs(tokens)
        if self.can_crop:
            return self.model(**inputs, cache=cache, **self._arguments).logits[0, -1]
        output = self.model(**inputs, cache=cache.state, **self._arguments)
        cache.state = getattr(output, "cache", None)
        cache.length += len(tokens)
        return output.logits[0, -1]

    def _inputs(self, tokens: Sequence[int]) -> dict[str, Any]:
        import torch

        if self.vision is not None and any(isinstance(token, PictureToken) for token in tokens):
            return {"inputs_embeds": self.vision.embed(tokens)}
        return {"input_ids": torch.tensor([list(tokens)], device=self.model.device)}


def _arguments(model: Any) -> dict[str, Any]:
    parameters = inspect.signature(model.forward).parameters
    if "cache" not in parameters:
        raise ValueError(f"model type {model.config.model_type!r} takes no `cache`: expected one that does")
    # Without it, the logits of all tokens are computed: slower, not wrong.
    return {"use_cache": True} | ({"logits_to_keep": 1} if "logits_to_keep" in parameters else {})
