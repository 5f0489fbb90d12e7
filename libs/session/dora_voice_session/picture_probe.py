"""Whether a model sees pictures as embeddings in a row of tokens, found out with one. Imported where torch is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dora_voice_session import picture_file
from dora_voice_session.cache_probe import PROBE, PROBE_END, goes_on_as
from dora_voice_session.hf_forward import Forward
from dora_voice_session.hf_vision import Vision

AFTER, SIZE = 3, (200, 150)
"""So many characters of PROBE are after the picture: fewer than PROBE_END tokens. Its width and height."""
TOLERANCE = 0.01
"""How far embeddings may be off, in terms of what they are."""


def check_pictures(forward: Forward, vision: Vision, tokenize: Callable[[str], list[int]]) -> None:
    """Raises ValueError if a picture between two texts isn't read as transformers reads it with the model's processor.

    Not its tokens, not what they become, not their positions and attention, or not in two steps, of which the first
    ends within the picture.
    """
    import torch

    before, after = PROBE[:-AFTER], PROBE[-AFTER:]
    picture = picture_file.noise(SIZE)
    with torch.inference_mode():
        inputs = vision.process(before + vision.placeholder + after, picture)
        tokens = [*tokenize(before), *vision.tokens(picture), *tokenize(after)]
        if vision.ids(tokens) != inputs["input_ids"][0].tolist():
            raise _refused(forward, "its tokens")
        expected, theirs = _read(forward, lambda: forward.model(**inputs).logits[0, -1].float())
        _, ours = _read(forward, lambda: forward.extend(forward.new_cache(), tokens))
        if different := _different(theirs, ours):
            raise _refused(forward, ", ".join(different))
        if not goes_on_as(expected, forward, tokens[:-PROBE_END], tokens[-PROBE_END:]):
            raise _refused(forward, "the logits after two steps")


def _read(forward: Forward, compute: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """What comes of it, and what the model's decoder was given for that."""
    given: dict[str, Any] = {}
    hook = forward.model.get_decoder().register_forward_pre_hook(
        lambda decoder, positional, named: given.update(named), with_kwargs=True
    )
    try:
        return compute(), given
    finally:
        hook.remove()


def _different(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Names of what the decoder gets from transformers, but not from us."""
    import torch

    said = {name: value for name, value in theirs.items() if isinstance(value, (torch.Tensor, dict, list, tuple))}
    # That every token sees all before it needs no saying.
    if isinstance(mask := said.get("attention_mask"), torch.Tensor) and mask.ndim == 2:
        del said["attention_mask"]
    return [name for name, value in said.items() if not _is_near(ours.get(name), value)] or (
        [] if "inputs_embeds" in said else ["inputs_embeds"]
    )


def _is_near(ours: Any, theirs: Any) -> bool:
    import torch

    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor) or ours.shape != theirs.shape:
        return False
    return float((ours - theirs).float().norm()) <= TOLERANCE * float(theirs.float().norm())


def _refused(forward: Forward, what: str) -> ValueError:
    return ValueError(
        f"model type {forward.model.config.model_type!r} can't hold a conversation with pictures: {what} would be "
        "other than in transformers. Expected pictures that are embeddings in a row of tokens, with the positions and "
        "the attention of a text, as in Idefics3 and LLaVA"
    )
