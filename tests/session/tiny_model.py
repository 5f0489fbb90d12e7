"""A chat model of a few thousand random weights, saved to a folder: real code, in milliseconds."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    FalconH1Config,
    FalconH1ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>"]
# Two letter pairs beside the characters, so that a text can be spelled in more than one way.
CHARACTERS = ["Ċ", "Ġ", *string.ascii_letters, *string.digits, *string.punctuation]
PAIRS = [("t", "h"), ("Ġ", "a")]


SIZES = {
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
GATED_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "num_experts": 0,
}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 8, "attention_bias": True}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 8}),
    "lfm2": (Lfm2ForCausalLM, Lfm2Config, {"layer_types": ["conv", "full_attention"]}),
    "qwen3_next": (Qwen3NextForCausalLM, Qwen3NextConfig, GATED_DELTA),
    "falcon_h1": (
        FalconH1ForCausalLM,
        FalconH1Config,
        {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8},
    ),
    "mamba": (MambaForCausalLM, MambaConfig, {"state_size": 4}),
    "recurrent_gemma": (
        RecurrentGemmaForCausalLM,
        RecurrentGemmaConfig,
        {"attention_window_size": 8, "num_hidden_layers": 3},
    ),
    "rwkv": (RwkvForCausalLM, RwkvConfig, {}),
}


def make_tiny_model(folder: Path, *, kind: str = "llama", chat_template: str | None = CHATML, **settings: Any) -> Path:
    """Saves a random model in fp32, and its tokenizer. Returns the folder.

    kind: one of KINDS.
    settings: of the model's configuration.
    """
    tokenizer = make_tokenizer(chat_template)
    tokenizer.save_pretrained(folder)
    model_type, config_type, peculiar = KINDS[kind]
    torch.manual_seed(7)
    model_type(config_type(**{**SIZES, "vocab_size": len(tokenizer), **peculiar, **settings})).save_pretrained(folder)
    return folder


def make_tokenizer(chat_template: str | None, special: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """special: more control tokens, with the ids after all others."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS, *map("".join, PAIRS)])}
    backend = Tokenizer(models.BPE(vocabulary, PAIRS))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=SPECIAL[0],
        eos_token=SPECIAL[1],
        additional_special_tokens=list(special),
        chat_template=chat_template,
    )
