"""A transformers causal language model with its tokenizer, from a folder or the hub. The torch part."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dora_voice_session.session import SLICE_TOKENS

Dtype = Literal["bf16", "fp32"]


class HfModel:
    """Satisfies `session.Model`; the text side beside it: chat template, tokenizer, end tokens."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self.end_tokens: frozenset[int] = _end_tokens(model, tokenizer)
        """Any of these ends a reply."""
        self.special_texts: tuple[str, ...] = tuple(
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        )
        """Spellings that the tokenizer turns into control tokens."""
        self.most_positions: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        """Longest text in tokens, if the model has a limit."""

    # Text

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The conversation in the model's own chat template, up to where its reply begins.

        Raises what the template raises, for instance about a role that it doesn't know.
        """
        # Templates of thinking models have this switch, others ignore it: a voice doesn't think aloud.
        return self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, enable_thinking=False
        )

    def tokenize(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, without control tokens; torn characters come out as U+FFFD."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    # Cache

    def new_cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self._model.config)

    def extend(self, cache: Any, tokens: Sequence[int]) -> NDArray[np.float32]:
        import torch

        with torch.inference_mode():
            output = self._model(torch.tensor([list(tokens)]), cache=cache, use_cache=True, logits_to_keep=1)
            return output.logits[0, -1].float().numpy()

    def crop(self, cache: Any, length: int) -> bool:
        from transformers.cache_utils import DynamicLayer

        # Sliding windows and recurrent states have forgotten what a crop would need.
        if any(type(layer) is not DynamicLayer for layer in cache.layers):
            return False
        # Negative: the number of tokens to remove.
        cache.crop(length - cache.get_seq_length())
        return True

    def cache_length(self, cache: Any) -> int:
        return cache.get_seq_length()

    def warm_up(self) -> None:
        """One slice and one step, so that the first turn doesn't pay for what is set up on first use."""
        cache = self.new_cache()
        for n in (SLICE_TOKENS, 1):
            self.extend(cache, [next(iter(self.end_tokens), 0)] * n)


def load(name_or_path: str, dtype: Dtype, threads: int) -> HfModel:
    """Loads a causal language model and its tokenizer from a local folder or by hub id, and warms it up.

    Raises OSError if it isn't there, ValueError if it can't hold a chat.
    """
    _wait_passively()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    is_local = Path(name_or_path).is_dir()
    torch_dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    tokenizer = AutoTokenizer.from_pretrained(name_or_path, local_files_only=is_local)
    if not tokenizer.chat_template:
        raise ValueError("its tokenizer has no chat template: expected a chat (instruct) model")
    model = AutoModelForCausalLM.from_pretrained(name_or_path, dtype=torch_dtype, local_files_only=is_local)
    loaded = HfModel(model.eval(), tokenizer)
    loaded.warm_up()
    return loaded


def _wait_passively() -> None:
    """Threads that spin while they wait starve the other nodes on the same cores. Read when torch is imported."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KMP_BLOCKTIME", "0")


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    ends = getattr(model.generation_config, "eos_token_id", None)
    ends = [*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id]
    return frozenset(end for end in ends if end is not None)
