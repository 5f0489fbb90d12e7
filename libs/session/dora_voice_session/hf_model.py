"""Loads a language model of transformers and its tokenizer, from a folder or the hub, and picks what is fast.

Prefill is transformers' own code of the model, and so is decoding in `bf16` and `fp32`. In `int4`, single tokens go
through packed weights: a Llama's through `llama_decoder.py` instead of transformers, others' through transformers with
the layers of `packed_linear.py`. `llama_decoder.py` also takes as many tokens at once as it is faster with here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from dora_voice.threads import cores
from dora_voice_session.cached_tokens import SLICE_TOKENS
from dora_voice_session.cpu_speed import (
    decodes_faster_in_bf16,
    most_that_are_faster,
    set_fewest_fast_threads,
    wait_passively,
)
from dora_voice_session.hf_chat import HfModel, NumberFormat
from dora_voice_session.hf_vision import Vision

if TYPE_CHECKING:  # they import torch
    from dora_voice_session.hf_forward import Forward
    from dora_voice_session.llama_decoder import LlamaDecoder

__all__ = ["DecoderSetting", "Device", "Dtype", "HfModel", "load"]

Dtype = Literal["auto", "fp32", "bf16", "int4"]
Device = Literal["auto", "cpu", "cuda"]
DecoderSetting = Literal["auto", "transformers"]

FOR_FILMS = "num2words and, of the same build as torch, torchvision"
"""What transformers needs for processors that are for films, too, even where only pictures come."""
MEASURED_TOKENS = (1, 4, 8, 16, SLICE_TOKENS)
"""That may go through a Llama's packed weights at once."""


def load(
    name_or_path: str,
    dtype: Dtype = "auto",
    device: Device = "auto",
    threads: int = 0,
    decoder: DecoderSetting = "auto",
) -> HfModel:
    """Loads a language model and its tokenizer from a local folder or by hub id, and warms it up.

    It takes pictures if it is one that transformers knows as made for that alone (`AutoModelForImageTextToText`).

    dtype: `int4` decodes in 4 bits on the CPU, and prefills in 4 bits or bf16, whatever is faster.
        `auto` is bf16 on a GPU; on the CPU int4 if the layers' weights are 4-bit numbers already, else the faster of
        fp32 and bf16, to which fp32 weights are rounded then.
    device: `auto` is the GPU if torch finds one.
    threads: of torch, in the whole process; 0 finds the fewest that are fast.
    decoder: `auto` decodes without transformers where `llama_decoder.py` can, `transformers` never does.

    Raises OSError if it isn't there, ValueError if it can't hold a chat or a setting doesn't fit.
    """
    _check(dtype, device, threads, decoder)
    wait_passively()
    import torch
    from transformers import AutoConfig, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    place = _find_device(device, dtype)
    torch.set_num_threads(threads or cores())
    is_local = Path(name_or_path).is_dir()
    config = AutoConfig.from_pretrained(name_or_path, local_files_only=is_local)
    processor = _read_processor(name_or_path) if _is_for_pictures(config) else None
    if processor is None:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, local_files_only=is_local)
    else:
        tokenizer = processor.tokenizer
        tokenizer.chat_template = processor.chat_template or tokenizer.chat_template
    if not tokenizer.chat_template:
        raise ValueError("its tokenizer has no chat template: expected a chat (instruct) model")
    loaded = _load_model(name_or_path, tokenizer, processor, dtype, place, decoder)
    loaded.extend(loaded.new_cache(), [0])
    if place == "cpu" and not threads:
        set_fewest_fast_threads(_one_token_decoder(loaded))
    if loaded.decoder == "llama":
        _set_llama_tokens(loaded)
    return loaded


def _check(dtype: Dtype, device: Device, threads: int, decoder: DecoderSetting) -> None:
    for name, value, known in (
        ("dtype", dtype, get_args(Dtype)),
        ("device", device, get_args(Device)),
        ("decoder", decoder, get_args(DecoderSetting)),
    ):
        if value not in known:
            raise ValueError(f"{name} {value!r}: expected {', '.join(known)}")
    if threads < 0:
        raise ValueError(f"threads {threads}: expected 0, to find out, or more")


def _find_device(device: Device, dtype: Dtype) -> str:
    import torch

    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise ValueError("device 'cuda': torch finds no GPU; expected cpu or auto")
    place = "cuda" if has_gpu and device != "cpu" else "cpu"
    if place == "cuda" and dtype == "int4":
        raise ValueError("dtype 'int4' on device 'cuda': its kernels are the CPU's; expected auto, bf16 or fp32")
    return place


def _load_model(
    name_or_path: str, tokenizer: Any, processor: Any | None, dtype: Dtype, place: str, decoder: DecoderSetting
) -> HfModel:
    import torch

    from dora_voice_session.cache_probe import find_forward, measure_cache, probe_tokens
    from dora_voice_session.picture_probe import check_pictures

    read = partial(_read, name_or_path, takes_pictures=processor is not None)
    # Packing and choosing need the weights as they are stored: narrower formats have rounded 4-bit numbers away.
    stored = read("auto") if place == "cpu" and dtype in ("auto", "int4") else None
    chosen = _fastest(stored) if dtype == "auto" else dtype
    wanted = torch.float32 if chosen == "fp32" else torch.bfloat16
    model = stored if stored is not None and stored.dtype == wanted else read(wanted)

    def tokenize(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    tokens = probe_tokens(tokenize)
    forward = find_forward(model.to(place), tokens)
    cache_size = measure_cache(forward, tokens)
    if processor is not None:
        forward.vision = Vision(model, processor)
        check_pictures(forward, forward.vision, tokenize)
    llama = _pack(forward, stored, decoder) if chosen == "int4" else None
    return HfModel(forward, tokenizer, dtype=chosen, cache_size=cache_size, llama=llama)


def _is_for_pictures(config: Any) -> bool:
    """Whether transformers has this model for pictures and text, and not for text alone."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING


def _read_processor(name_or_path: str) -> Any:
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(name_or_path, local_files_only=Path(name_or_path).is_dir())
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"its processor can't be loaded: {error}. Those that take films, too, need {FOR_FILMS}"
        ) from error
    if not hasattr(processor, "image_processor") or not hasattr(processor, "image_token_id"):
        raise ValueError(f"its processor, {type(processor).__name__}, has no token for pictures: expected one with it")
    return processor


def _read(name_or_path: str, dtype: Any, *, takes_pictures: bool) -> Any:
    """dtype: torch's, or `auto` for the one it is stored in."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForImageTextToText if takes_pictures else AutoModelForCausalLM
    is_local = Path(name_or_path).is_dir()
    return kind.from_pretrained(name_or_path, dtype=dtype, local_files_only=is_local).eval()


def _fastest(stored: Any | None) -> NumberFormat:
    """The number format that decodes fastest; 4 bits only of 4-bit numbers. stored: None on a GPU."""
    from dora_voice_session.packed_linear import has_fast_kernels, holds_4_bit_numbers

    if stored is None:
        return "bf16"
    if has_fast_kernels() and holds_4_bit_numbers(stored):
        return "int4"
    return "bf16" if decodes_faster_in_bf16(stored) else "fp32"


def _pack(forward: Forward, stored: Any, decoder: DecoderSetting) -> LlamaDecoder | None:
    """Packs weights for decoding: into the decoder that is returned, else into the model's own layers.

    stored: the same model in the format it was stored in.
    """
    import torch

    from dora_voice_session import llama_decoder, packed_linear

    model = forward.model
    with torch.inference_mode():
        packed_linear.pack_head(model, stored)
        if decoder == "auto" and forward.can_crop and llama_decoder.can_decode(model):
            return llama_decoder.LlamaDecoder(model, stored)
        packed_linear.pack_layers(model, stored)
    return None


def _set_llama_tokens(loaded: HfModel) -> None:
    cache, all_of_them, none = loaded.new_cache(), MEASURED_TOKENS[-1], 0

    def extend(llama_tokens: int, count: int) -> None:
        loaded.llama_tokens = llama_tokens
        loaded.crop(cache, 0)
        loaded.extend(cache, [0] * count)

    loaded.llama_tokens = most_that_are_faster(MEASURED_TOKENS, partial(extend, all_of_them), partial(extend, none))


def _one_token_decoder(loaded: HfModel) -> Callable[[], None]:
    cache = loaded.new_cache()

    def decode_one_token() -> None:
        if loaded.can_crop:
            loaded.crop(cache, 0)
        loaded.extend(cache, [0])

    return decode_one_token
