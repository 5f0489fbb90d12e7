"""What the caches of a model can do and how much memory they take, found out with a short text.

Imported only where torch is there. It also sets up what torch sets up on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from dora_voice_session.hf_forward import Forward
from dora_voice_session.kv_cache import has_plain_attention_only, room

PROBE = (
    "Which cups shall I put on the upper shelf: the red ones, or the three blue ones that came in the box today? "
    "And where do the plates belong?"
)
PROBE_START, PROBE_END = 26, 6
"""Tokens of it: first so many, then so many. The end is short, so that a small window reaches back to the start."""
PROBE_TOLERANCE = 0.25
"""How far rounding may move the logits, in terms of how far they move if the start is forgotten. bf16: a tenth."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Bytes that a cache takes at all, and for each token."""

    fixed: float
    per_token: float
    in_blocks: bool
    """Room is made for many tokens at once."""

    def of(self, tokens: int) -> int:
        """Of so many tokens; of a cache that isn't `in_blocks` at most, because windows stop growing."""
        return round(self.fixed + self.per_token * (room(tokens) if self.in_blocks else tokens))


def probe_tokens(tokenize: Callable[[str], list[int]]) -> list[int]:
    """As many for every tokenizer: the text begins anew if it is too short."""
    return list(islice(cycle(tokenize(PROBE)), PROBE_START + PROBE_END))


def find_forward(model: Any, tokens: Sequence[int]) -> Forward:
    """What isn't known to be croppable is never cropped, and what goes on wrongly is not gone on with.

    Raises ValueError if nothing goes on correctly. tokens: see `probe_tokens`.
    """
    import torch

    with torch.inference_mode():
        if has_plain_attention_only(model):
            forward = Forward(model, can_crop=True)
            if _keeps_every_token(forward, tokens) and _goes_on_correctly(forward, tokens):
                return forward
        # transformers' scan of some recurrent models begins with an empty state, whatever the cache says.
        for takes_slices in (True, False):
            forward = Forward(model, can_crop=False, takes_slices=takes_slices)
            if _goes_on_correctly(forward, tokens):
                return forward
    raise ValueError(
        f"model type {model.config.model_type!r} can't hold a conversation: "
        "expected a text in two steps to give the logits of the text in one"
    )


def measure_cache(forward: Forward, tokens: Sequence[int]) -> CacheSize:
    """tokens: see `probe_tokens`."""
    import torch

    few = tokens[PROBE_START:]  # More may be more than a window holds.
    one, several = forward.new_cache(), forward.new_cache()
    with torch.inference_mode():
        forward.extend(one, few[:1])
        forward.extend(several, few)
    if forward.can_crop:
        return CacheSize(0, several.nbytes / room(len(few)), in_blocks=True)
    per_token = (several.nbytes - one.nbytes) / (len(few) - 1)
    return CacheSize(one.nbytes - per_token, per_token, in_blocks=False)


def _keeps_every_token(forward: Forward, tokens: Sequence[int]) -> bool:
    """Whether each layer has put what it needs into a cache that can be cropped."""
    cache: Any = forward.new_cache()
    forward.extend(cache, tokens)
    return all(layer.length == len(tokens) for layer in cache.layers)


def _goes_on_correctly(forward: Forward, tokens: Sequence[int]) -> bool:
    """Whether a text in two steps gives the logits of the text in one."""
    expected = forward.extend(forward.new_cache(), tokens).float()
    return goes_on_as(expected, forward, tokens[:PROBE_START], tokens[PROBE_START:])


def goes_on_as(expected: Any, forward: Forward, start: Sequence[int], end: Sequence[int]) -> bool:
    """Whether `start`, and then `end`, give the expected logits, with another text in between."""
    cache = forward.new_cache()
    forward.extend(cache, start)
    forgetful = forward.extend(forward.new_cache(), end).float()
    found = forward.extend(cache, end).float()
    return float((found - expected).norm()) <= PROBE_TOLERANCE * float((forgetful - expected).norm())
