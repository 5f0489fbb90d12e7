"""Vision-language models of a few thousand random weights, each with its processor: real code, in milliseconds."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from session.tiny_model import SIZES, make_tokenizer
from transformers import (
    AyaVisionConfig,
    AyaVisionForConditionalGeneration,
    AyaVisionProcessor,
    CLIPImageProcessorPil,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    LlavaProcessor,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}"
    "{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'image' %}<image>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARTS_ONLY = TEMPLATE.replace("{% if message.content is string %}{{ message.content }}{% else %}", "").replace(
    "{% endfor %}{% endif %}<|im_end|>", "{% endfor %}<|im_end|>"
)
"""As SmolVLM's: a content that is a string is rendered as nothing."""
SEEING = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIDE, PATCH = 32, 8
TILE_TOKENS = 4
"""Of Idefics3: 16 patches, 2 x 2 of them in one."""


def make_tiny_vision_model(folder: Path, kind: str, *, chat_template: str = TEMPLATE) -> Path:
    """Saves a random model in fp32, and its processor. Returns the folder.

    kind: one of KINDS.
    """
    torch.manual_seed(7)
    model, processor = KINDS[kind](chat_template)
    # Random as well, so that places and biases count.
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _idefics3(chat_template: str) -> tuple[Any, Any]:
    cells = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    special = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *cells]
    tokenizer = make_tokenizer(chat_template, special)
    config = Idefics3Config(
        vision_config={**SEEING, "image_size": SIDE, "patch_size": PATCH},
        text_config={**SIZES, "model_type": "llama", "vocab_size": len(tokenizer)},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
    )
    images = Idefics3ImageProcessorPil(size={"longest_edge": 4 * SIDE}, max_image_size={"longest_edge": SIDE})
    processor = Idefics3Processor(images, tokenizer, image_seq_len=TILE_TOKENS, chat_template=chat_template)
    return Idefics3ForConditionalGeneration(config), processor


def _sliding(chat_template: str) -> tuple[Any, Any]:
    """A LLaVA whose caches can't go back."""
    return _llava(chat_template, model_type="mistral", sliding_window=8)


def _llava(chat_template: str, **text: Any) -> tuple[Any, Any]:
    tokenizer = make_tokenizer(chat_template, ["<image>"])
    config = LlavaConfig(
        vision_config={**SEEING, "model_type": "clip_vision_model", "image_size": SIDE, "patch_size": PATCH},
        text_config={**SIZES, "model_type": "llama", "vocab_size": len(tokenizer), **text},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )
    images = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    processor = LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template,
    )
    return LlavaForConditionalGeneration(config), processor


def _aya_vision(chat_template: str) -> tuple[Any, Any]:
    tiles = ["TILE_GLOBAL", *(f"TILE_{i}" for i in range(1, 13))]
    special = ["<image>", "<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", *tiles]
    tokenizer = make_tokenizer(chat_template, special)
    tokenizer.pad_token = tokenizer.eos_token
    config = AyaVisionConfig(
        vision_config={**SEEING, "model_type": "siglip_vision_model", "image_size": SIDE, "patch_size": PATCH},
        text_config={**SIZES, "model_type": "llama", "vocab_size": len(tokenizer)},
        image_token_id=tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>"),
        adapter_layer_norm_eps=1e-6,
    )
    images = GotOcr2ImageProcessorPil(size={"height": SIDE, "width": SIDE}, crop_to_patches=True)
    processor = AyaVisionProcessor(
        images, tokenizer, patch_size=PATCH, img_size=SIDE, downsample_factor=2, chat_template=chat_template
    )
    return AyaVisionForConditionalGeneration(config), processor


def _llava_next(chat_template: str) -> tuple[Any, Any]:
    llava, processor = _llava(chat_template)
    grids = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]
    config = LlavaNextConfig(
        vision_config=llava.config.vision_config,
        text_config=llava.config.text_config,
        image_token_id=llava.config.image_token_id,
        image_grid_pinpoints=grids,
    )
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}, image_grid_pinpoints=grids
    )
    processor = LlavaNextProcessor(
        images,
        processor.tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template,
    )
    return LlavaNextForConditionalGeneration(config), processor


def qwen2_vl_processor() -> Any:
    """Without its part for films, which needs torchvision."""
    special = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
    tokenizer = make_tokenizer(TEMPLATE.replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>"), special)
    with patch.object(Qwen2VLProcessor, "check_argument_for_proper_class", lambda self, name, part: part):
        return Qwen2VLProcessor(Qwen2VLImageProcessorPil(), tokenizer, None, chat_template=tokenizer.chat_template)


def make_tiny_qwen2_vl(folder: Path) -> Path:
    """Saves a random model without its processor. Returns the folder."""
    tokenizer = qwen2_vl_processor().tokenizer
    rotary = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10_000.0}
    config = Qwen2VLConfig(
        vision_config={"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2},
        text_config={**SIZES, "vocab_size": len(tokenizer), "rope_parameters": rotary},
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
    )
    Qwen2VLForConditionalGeneration(config).save_pretrained(folder)
    return folder


KINDS: dict[str, Callable[[str], tuple[Any, Any]]] = {
    "idefics3": _idefics3,
    "llava": _llava,
    "sliding": _sliding,
    "aya_vision": _aya_vision,
    "llava_next": _llava_next,
}


def picture(seed: int = 0, size: tuple[int, int] = (96, 64), kind: str = "PNG", **options: Any) -> str:
    """A file with random pixels, as base64."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), np.uint8)
    Image.fromarray(pixels).save(file := io.BytesIO(), kind, **options)
    return base64.b64encode(file.getvalue()).decode()
