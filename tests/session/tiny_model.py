"""A chat model of a few thousand random weights, saved to a folder: real code, in milliseconds."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>"]
# Two letter pairs beside the characters, so that a text can be spelled in more than one way.
CHARACTERS = ["Ċ", "Ġ", *string.ascii_letters, *string.digits, *string.punctuation]
PAIRS = [("t", "h"), ("Ġ", "a")]


def make_tiny_model(folder: Path, *, sliding_window: int | None = None, chat_template: str | None = CHATML) -> Path:
    """Saves a random model in fp32, and its tokenizer. Returns the folder."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS, *map("".join, PAIRS)])}
    backend = Tokenizer(models.BPE(vocabulary, PAIRS))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=SPECIAL[0], eos_token=SPECIAL[1], chat_template=chat_template
    )
    tokenizer.save_pretrained(folder)
    sizes = {
        "vocab_size": len(vocabulary),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": 0.3,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    torch.manual_seed(7)
    if sliding_window is None:
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        model = MistralForCausalLM(MistralConfig(**sizes, sliding_window=sliding_window))
    model.save_pretrained(folder)
    return folder
