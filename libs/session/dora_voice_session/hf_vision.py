"""The pictures of a vision-language model of transformers: their tokens, and what the model sees in their place.

Both are what the model's own processor and vision tower make of one picture alone. Imported only where torch is there.
"""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from dora_voice_session import picture_file
from dora_voice_session.model import TemplateMessage
from dora_voice_session.picture_token import PictureToken, key_of, most_slices
from dora_voice_session.schema import MediaPart, TextPart

LARGEST_SEEN_BYTES = 64 * 2**20
"""Of what was seen in the latest pictures; what was seen in earlier ones is computed again when it is needed."""
MOST_SPELLED = 256
"""Of the latest pictures, the tokens are known."""
PROBE_SIZES = (64, 64), (2000, 1000)
"""Pictures of these sizes have the same number of tokens if the processor cuts none."""


class Vision:
    """What it computes needs `torch.inference_mode`."""

    def __init__(self, model: Any, processor: Any) -> None:
        """Raises ValueError if the model can't be asked what it sees."""
        if not hasattr(model, "get_image_features"):
            raise ValueError(
                f"model type {model.config.model_type!r} has no `get_image_features`: expected one with it"
            )
        self.placeholder: str = processor.image_token
        """Stands for a picture in what the chat template renders."""
        self._placeholder_id: int = processor.image_token_id
        self._model = model
        self._processor = processor
        self._spelled: OrderedDict[str, list[int]] = OrderedDict()
        """Token ids of the latest pictures, by key, the latest last."""
        self._seen: OrderedDict[str, Any] = OrderedDict()
        """Embeddings of the latest pictures, (tokens, width), by key, the latest last."""
        looks = [each.get_image_features for each in (model, model.base_model) if hasattr(each, "get_image_features")]
        self._features = {name for look in looks for name in inspect.signature(look).parameters}
        """Names of what the processor may say of a picture; what else it says is of the text."""
        self._takes_strings = _takes_strings(processor)
        self.limits_slices = _slice_settings(processor.image_processor, 1) is not None or self._cuts_nothing()

    def for_template(self, message: TemplateMessage) -> dict[str, Any]:
        content = message["content"]
        if isinstance(content, str):
            parts: Any = content if self._takes_strings else [{"type": "text", "text": content}]
        else:
            parts = [
                {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
                for part in content
            ]
        return {"role": message["role"], "content": parts}

    def tokens(self, picture: MediaPart) -> list[int]:
        """All that the processor puts in the place of the placeholder."""
        key = key_of(picture)
        if key not in self._spelled:
            self._spelled[key] = self.process(self.placeholder, picture)["input_ids"][0].tolist()
        self._spelled.move_to_end(key)
        while len(self._spelled) > MOST_SPELLED:
            self._spelled.popitem(last=False)
        places = iter(range(len(self._spelled[key])))
        return [
            PictureToken(picture, key, next(places)) if token == self._placeholder_id else token
            for token in self._spelled[key]
        ]

    def embed(self, tokens: Sequence[int]) -> Any:
        """What the model reads for these tokens, (1, tokens, width)."""
        import torch

        # What the placeholder itself would be is of no account.
        ids = [0 if isinstance(token, PictureToken) else token for token in tokens]
        embeddings = self._model.get_input_embeddings()(torch.tensor([ids], device=self._model.device)).clone()
        for i, token in enumerate(tokens):
            if isinstance(token, PictureToken):
                embeddings[0, i] = self._look_at(token)[token.index]
        return embeddings

    def ids(self, tokens: Sequence[int]) -> list[int]:
        """In the vocabulary."""
        return [self._placeholder_id if isinstance(token, PictureToken) else token for token in tokens]

    def process(self, text: str, picture: MediaPart) -> Any:
        """What the model reads according to its processor, for a text with one placeholder."""
        settings = _slice_settings(self._processor.image_processor, most_slices(picture)) or {}
        return self._processor(
            text=text,
            images=[picture_file.decode(picture)],
            return_tensors="pt",
            text_kwargs={"add_special_tokens": False, "padding": False},
            images_kwargs=settings,
        ).to(self._model.device, self._model.dtype)

    def _look_at(self, token: PictureToken) -> Any:
        """What the model sees in the token's picture, (picture tokens, width)."""
        if token.key not in self._seen:
            inputs = self.process(self.placeholder, token.picture)
            inputs = {name: value for name, value in inputs.items() if name in self._features}
            seen = self._model.get_image_features(**inputs).pooler_output
            parts = [part.flatten(0, -2) for part in seen] if isinstance(seen, (list, tuple)) else [seen.flatten(0, -2)]
            self._keep(token.key, parts)
        self._seen.move_to_end(token.key)
        return self._seen[token.key]

    def _keep(self, key: str, parts: Sequence[Any]) -> None:
        import torch

        self._seen[key] = torch.cat(list(parts))
        while len(self._seen) > 1 and sum(seen.nbytes for seen in self._seen.values()) > LARGEST_SEEN_BYTES:
            self._seen.popitem(last=False)

    def _cuts_nothing(self) -> bool:
        # Idefics2 cuts all pictures into as many pieces.
        if getattr(self._processor.image_processor, "do_image_splitting", False):
            return False
        few, many = (len(self.tokens(picture_file.noise(size))) for size in PROBE_SIZES)
        return few == many


def _slice_settings(image_processor: Any, most: int) -> dict[str, Any] | None:
    """What makes the processor cut a picture into at most so many pieces; None if nothing is known to.

    The whole picture, which comes beside its pieces, is none of them.
    """
    if hasattr(image_processor, "do_image_splitting") and hasattr(image_processor, "max_image_size"):
        # The longer side is as long as so many pieces, and the shorter one no longer.
        side, longest = image_processor.max_image_size["longest_edge"], image_processor.size["longest_edge"]
        pieces = min(math.isqrt(most), longest // side)
        if not image_processor.do_image_splitting or pieces < 2:
            return {"do_image_splitting": False}
        return {"do_image_splitting": True, "size": {"longest_edge": pieces * side}}
    if hasattr(image_processor, "crop_to_patches") and hasattr(image_processor, "max_patches"):
        fewest = min(most, image_processor.min_patches)
        return {"min_patches": fewest, "max_patches": min(most, image_processor.max_patches)}
    return None


def _takes_strings(processor: Any) -> bool:
    """Whether the chat template renders a content that is a string, no list of parts."""
    messages = [{"role": "user", "content": "word"}]
    try:
        return "word" in processor.tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:
        return False
