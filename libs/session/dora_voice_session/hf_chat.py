"""A transformers model and its tokenizer as sessions want them. `hf_model.load` makes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from dora_voice_session.model import TemplateMessage
from dora_voice_session.picture_token import MARK, MARK_BEGIN, key_of, mark
from dora_voice_session.schema import MediaPart

if TYPE_CHECKING:  # they import torch
    from dora_voice_session.cache_probe import CacheSize
    from dora_voice_session.hf_forward import Forward
    from dora_voice_session.llama_decoder import LlamaDecoder

NumberFormat = Literal["fp32", "bf16", "int4"]
Decoder = Literal["llama", "packed layers", "transformers"]

TEMPLATE_SWITCHES = ("enable_thinking", "use_tts_template")


class HfModel:
    """Satisfies `model.ChatModel`."""

    def __init__(
        self,
        forward: Forward,
        tokenizer: Any,
        *,
        dtype: NumberFormat,
        cache_size: CacheSize,
        llama: LlamaDecoder | None = None,
    ) -> None:
        """dtype: `int4` if the model's layers or `llama` have packed weights. llama: takes a few tokens."""
        model = forward.model
        self.dtype: NumberFormat = dtype
        """For the log, as are `device`, `decoder` and `threads`."""
        self.device: str = model.device.type
        """`cpu` or `cuda`."""
        self.decoder: Decoder = "llama" if llama is not None else "packed layers" if dtype == "int4" else "transformers"
        """What single tokens go through: `llama_decoder.py`, transformers on `packed_linear.py`, transformers alone."""
        self.can_crop: bool = forward.can_crop
        self.end_tokens: frozenset[int] = _end_tokens(model, tokenizer)
        self.special_texts: tuple[str, ...] = tuple(
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        )
        self.most_positions: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.template_switches: frozenset[str] = frozenset(
            switch for switch in TEMPLATE_SWITCHES if switch in str(tokenizer.chat_template)
        )
        self.takes_pictures: bool = forward.vision is not None
        self.limits_slices: bool = forward.vision is not None and forward.vision.limits_slices
        if forward.vision is not None:
            self.special_texts += (forward.vision.placeholder, MARK_BEGIN)
        self._pictures: WeakValueDictionary[str, MediaPart] = WeakValueDictionary()
        """What marks in rendered texts stand for, by key: those that some history has."""
        self._tokenizer = tokenizer
        self._forward = forward
        self._cache_size = cache_size
        self._llama = llama
        self.llama_tokens = 1
        """So many tokens at once go through the decoder `llama`; more through transformers."""

    @property
    def threads(self) -> int:
        """Of torch in this process."""
        import torch

        return torch.get_num_threads()

    # Text

    def render(
        self, messages: Sequence[TemplateMessage], *, add_generation_prompt: bool = True, **switches: bool
    ) -> str:
        """The conversation in the model's own chat template.

        Raises what the template raises, for instance about a role that it doesn't know.

        add_generation_prompt: goes on to where the model's reply begins.
        switches: see `template_switches`. A voice doesn't think aloud, unless `enable_thinking` says so.
        """
        vision = self._forward.vision
        text = self._tokenizer.apply_chat_template(
            [dict(message) if vision is None else vision.for_template(message) for message in messages],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **{"enable_thinking": False, **switches},
        )
        return text if vision is None else self._marked(text, vision.placeholder, messages)

    def tokenize(self, text: str) -> list[int]:
        """What `render` has put in the place of a picture becomes the tokens of that."""
        vision, tokens = self._forward.vision, []
        for i, piece in enumerate([text] if vision is None else MARK.split(text)):
            if vision is not None and i % 2:
                tokens += vision.tokens(self._pictures[piece])
            else:
                tokens += self._tokenizer(piece, add_special_tokens=False)["input_ids"]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, without control tokens; torn characters come out as U+FFFD."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _marked(self, text: str, placeholder: str, messages: Sequence[TemplateMessage]) -> str:
        """With marks in the place of the placeholders, so that texts with different pictures are different."""
        pictures = [part for each in messages for part in each["content"] if isinstance(part, MediaPart)]
        first, *others = text.split(placeholder)
        if len(others) != len(pictures):
            raise ValueError(f"it has {len(others)} times {placeholder!r} for {len(pictures)} pictures")
        self._pictures.update((key_of(picture), picture) for picture in pictures)
        return first + "".join(mark(picture) + other for picture, other in zip(pictures, others, strict=True))

    # Cache

    def new_cache(self) -> Any:
        return self._forward.new_cache()

    def extend(self, cache: Any, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Appends at least one token to the cache; the logits of the token after them, shape (vocabulary,)."""
        import torch

        with torch.inference_mode():
            if self._llama is not None and len(tokens) <= self.llama_tokens:
                logits = self._llama(tokens, cache)
            else:
                logits = self._forward.extend(cache, tokens)
            return logits.float().cpu().numpy()

    def crop(self, cache: Any, length: int) -> None:
        """Takes the cache back to its first `length` tokens. Only if `can_crop`."""
        cache.keep(length)

    def fork(self, cache: Any) -> Any:
        """A cache of the same tokens; from here on the two know nothing of each other."""
        import torch

        with torch.inference_mode():
            return cache.fork()

    def cache_length(self, cache: Any) -> int:
        return cache.length

    def cache_bytes(self, tokens: int) -> int:
        """Memory that a cache of so many tokens takes; if it can't be cropped, at most: windows stop growing."""
        return self._cache_size.of(tokens)

    def held_bytes(self, cache: Any) -> int:
        """Memory that this cache takes; forks share it until they differ, and count it each."""
        return cache.nbytes

    def offload(self, cache: Any) -> Any | None:
        """The cache in the host's memory, which is less scarce than a GPU's; None if it is there already."""
        return None if self.device == "cpu" else _moved(cache, "cpu")

    def restore(self, offloaded: Any) -> Any:
        return _moved(offloaded, self.device)


def _moved(cache: Any, place: str) -> Any:
    import torch

    with torch.inference_mode():
        return cache.to(place)


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    ends = getattr(model.generation_config, "eos_token_id", None)
    ends = [*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id]
    return frozenset(end for end in ends if end is not None)
