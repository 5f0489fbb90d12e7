"""A transformers causal language model with its tokenizer, from a folder or the hub. The torch part.

Every model goes through transformers' own code. What makes it fast on a CPU lies beside it: `kv_cache.py` for models
with plain attention, `packed_linear.py` and `llama_decoder.py` for `int4`. `bf16` and `fp32` do without the last two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dora_voice_session.cpu_speed import cores, decodes_faster_in_bf16, set_fewest_fast_threads, wait_passively
from dora_voice_session.model import ChatMessage

Dtype = Literal["auto", "fp32", "bf16", "int4"]
Device = Literal["auto", "cpu", "cuda"]

TEMPLATE_SWITCHES = ("enable_thinking", "use_tts_template")
PROBE = "Which cups shall I put on the upper shelf: the red ones, or the three blue ones that came in the box today?"
PROBE_START, PROBE_END = 26, 6
"""Tokens of it: first so many, then so many. The end is short, so that a small window reaches back to the start."""
PROBE_TOLERANCE = 0.25
"""How far rounding may move the logits, in terms of how far they move if the start is forgotten. bf16: a tenth."""


class HfModel:
    """Satisfies `model.ChatModel`."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """Raises ValueError if the model's cache can't be continued."""
        self.dtype = {"torch.float32": "fp32", "torch.bfloat16": "bf16"}.get(str(model.dtype), str(model.dtype))
        """`fp32`, `bf16` or `int4`, for the log."""
        self.device: str = model.device.type
        """`cpu` or `cuda`, for the log."""
        self.end_tokens: frozenset[int] = _end_tokens(model, tokenizer)
        self.special_texts: tuple[str, ...] = tuple(
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        )
        self.most_positions: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.template_switches: frozenset[str] = frozenset(
            switch for switch in TEMPLATE_SWITCHES if switch in str(tokenizer.chat_template)
        )
        self._tokenizer = tokenizer
        self._model = model
        self._forward_arguments = _forward_arguments(model)
        self._decoder: Callable[[int, Any], Any] | None = None
        self.can_crop = False
        self._takes_slices = True
        self._find_out_what_its_cache_can_do()
        self._fixed_bytes, self._token_bytes = self._measure_bytes()

    @property
    def threads(self) -> int:
        """Of torch in this process, for the log."""
        import torch

        return torch.get_num_threads()

    def pack(self, stored: Any) -> None:
        """Decodes in 4 bits from here on. stored: the same model in the format it was stored in."""
        import torch

        from dora_voice_session import llama_decoder, packed_linear

        with torch.inference_mode():
            packed_linear.pack_head(self._model, stored)
            if self.can_crop and llama_decoder.can_decode(self._model):
                self._decoder = llama_decoder.LlamaDecoder(self._model, stored)
            else:
                packed_linear.pack_layers(self._model, stored)
        self.dtype = "int4"

    # Text

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True, **switches: bool) -> str:
        """The conversation in the model's own chat template.

        Raises what the template raises, for instance about a role that it doesn't know.

        add_generation_prompt: goes on to where the model's reply begins.
        switches: see `template_switches`. A voice doesn't think aloud, unless `enable_thinking` says so.
        """
        return self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **{"enable_thinking": False, **switches},
        )

    def tokenize(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, without control tokens; torn characters come out as U+FFFD."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    # Cache

    def new_cache(self) -> Any:
        from dora_voice_session.kv_cache import BlockCache, ForeignCache

        return BlockCache.for_model(self._model) if self.can_crop else ForeignCache()

    def extend(self, cache: Any, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Appends at least one token to the cache; the logits of the token after them, shape (vocabulary,)."""
        import torch

        with torch.inference_mode():
            if cache.length and not self._takes_slices:
                for token in tokens[:-1]:
                    self._extend_once(cache, [token])
                tokens = tokens[-1:]
            return self._extend_once(cache, tokens).float().cpu().numpy()

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
        from dora_voice_session.kv_cache import room

        return round(self._fixed_bytes + self._token_bytes * (room(tokens) if self.can_crop else tokens))

    def held_bytes(self, cache: Any) -> int:
        """Memory that this cache takes; forks share it until they differ, and count it each."""
        return cache.nbytes

    def offload(self, cache: Any) -> Any | None:
        """The cache in the host's memory, which is less scarce than a GPU's; None if it is there already."""
        return None if self.device == "cpu" else _moved(cache, "cpu")

    def restore(self, offloaded: Any) -> Any:
        return _moved(offloaded, self.device)

    def _extend_once(self, cache: Any, tokens: Sequence[int]) -> Any:
        """The logits, a tensor of shape (vocabulary,)."""
        import torch

        if self._decoder is not None and len(tokens) == 1:
            return self._decoder(tokens[0], cache)
        token_ids = torch.tensor([list(tokens)], device=self._model.device)
        if self.can_crop:
            return self._model(token_ids, cache=cache, **self._forward_arguments).logits[0, -1]
        output = self._model(token_ids, cache=cache.state, **self._forward_arguments)
        cache.state = getattr(output, "cache", None)
        cache.length += len(tokens)
        return output.logits[0, -1]

    # What is found out at the start. It also sets up what torch sets up on first use

    def _find_out_what_its_cache_can_do(self) -> None:
        """What isn't known to be croppable is never cropped, and what goes on wrongly is not gone on with."""
        from dora_voice_session.kv_cache import has_plain_attention_only

        self.can_crop = has_plain_attention_only(self._model)
        if self.can_crop and not (self._keeps_every_token() and self._goes_on_correctly()):
            self.can_crop = False
        if not self.can_crop and not self._goes_on_correctly():
            # transformers' scan of some recurrent models begins with an empty state, whatever the cache says.
            self._takes_slices = False
            if not self._goes_on_correctly():
                raise ValueError(
                    f"model type {self._model.config.model_type!r} can't hold a conversation: "
                    "expected a text in two steps to give the logits of the text in one"
                )

    def _keeps_every_token(self) -> bool:
        """Whether each layer has put what it needs into a cache that can be cropped."""
        cache = self.new_cache()
        start, _ = self._probe()
        self.extend(cache, start)
        return all(layer.length == len(start) for layer in cache.layers)

    def _goes_on_correctly(self) -> bool:
        """Whether a text in two steps, with another text in between, gives the logits of the text in one."""
        start, end = self._probe()
        expected = self.extend(self.new_cache(), start + end)
        cache = self.new_cache()
        self.extend(cache, start)
        forgetful = self.extend(self.new_cache(), end)
        found = self.extend(cache, end)
        return float(np.linalg.norm(found - expected)) <= PROBE_TOLERANCE * float(np.linalg.norm(forgetful - expected))

    def _measure_bytes(self) -> tuple[float, float]:
        """What a cache takes at all, and what it takes for each token. Few tokens tell, before a window is full."""
        from dora_voice_session.kv_cache import room

        _, tokens = self._probe()
        one, several = self.new_cache(), self.new_cache()
        self.extend(one, tokens[:1])
        self.extend(several, tokens)
        if self.can_crop:
            return 0, several.nbytes / room(len(tokens))
        per_token = (several.nbytes - one.nbytes) / (len(tokens) - 1)
        return one.nbytes - per_token, per_token

    def _probe(self) -> tuple[list[int], list[int]]:
        tokens = self.tokenize(PROBE)[: PROBE_START + PROBE_END]
        return tokens[:-PROBE_END], tokens[-PROBE_END:]


def load(name_or_path: str, dtype: Dtype = "auto", device: Device = "auto", threads: int = 0) -> HfModel:
    """Loads a causal language model and its tokenizer from a local folder or by hub id, and warms it up.

    dtype: `int4` decodes in 4 bits on the CPU and prefills in bf16. `auto` is bf16 on a GPU; on the CPU int4 if
        the weights are 4-bit numbers, so that nothing is lost, else the faster of bf16 and fp32.
    device: `auto` is the GPU if torch finds one.
    threads: of torch, in the whole process; 0 finds the fewest that are fast.

    Raises OSError if it isn't there, ValueError if it can't hold a chat or a setting doesn't fit.
    """
    if threads < 0:
        raise ValueError(f"threads {threads}: expected 0, to find out, or more")
    wait_passively()
    import torch
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    place = _find_device(device, dtype)
    torch.set_num_threads(threads or cores())
    tokenizer = AutoTokenizer.from_pretrained(name_or_path, local_files_only=Path(name_or_path).is_dir())
    if not tokenizer.chat_template:
        raise ValueError("its tokenizer has no chat template: expected a chat (instruct) model")
    loaded = _load_model(name_or_path, tokenizer, dtype, place)
    decode_one_token = _one_token_decoder(loaded)
    decode_one_token()
    if place == "cpu" and not threads:
        set_fewest_fast_threads(decode_one_token)
    return loaded


def _find_device(device: Device, dtype: Dtype) -> str:
    import torch

    for name, value, known in (("dtype", dtype, get_args(Dtype)), ("device", device, get_args(Device))):
        if value not in known:
            raise ValueError(f"{name} {value!r}: expected {', '.join(known)}")
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise ValueError("device 'cuda': torch finds no GPU; expected cpu or auto")
    place = "cuda" if has_gpu and device != "cpu" else "cpu"
    if place == "cuda" and dtype == "int4":
        raise ValueError("dtype 'int4' on device 'cuda': its kernels are the CPU's; expected auto, bf16 or fp32")
    return place


def _load_model(name_or_path: str, tokenizer: Any, dtype: Dtype, place: str) -> HfModel:
    import torch

    if place == "cpu" and dtype in ("auto", "int4"):
        stored = _read(name_or_path, "auto")
        chosen = _fastest(stored) if dtype == "auto" else dtype
    else:
        stored, chosen = None, "bf16" if dtype == "auto" else dtype
    wanted = torch.float32 if chosen == "fp32" else torch.bfloat16
    model = stored if stored is not None and stored.dtype == wanted else _read(name_or_path, wanted)
    loaded = HfModel(model.to(place), tokenizer)
    if chosen == "int4":
        loaded.pack(stored)
    return loaded


def _read(name_or_path: str, dtype: Any) -> Any:
    """dtype: torch's, or `auto` for the one it is stored in."""
    from transformers import AutoModelForCausalLM

    is_local = Path(name_or_path).is_dir()
    return AutoModelForCausalLM.from_pretrained(name_or_path, dtype=dtype, local_files_only=is_local).eval()


def _fastest(stored: Any) -> Dtype:
    """The number format that decodes fastest here without losing more than bf16 does."""
    from dora_voice_session.packed_linear import has_fast_kernels, holds_4_bit_numbers

    if has_fast_kernels() and holds_4_bit_numbers(stored):
        return "int4"
    return "bf16" if decodes_faster_in_bf16(stored) else "fp32"


def _one_token_decoder(loaded: HfModel) -> Callable[[], None]:
    cache = loaded.new_cache()

    def decode_one_token() -> None:
        if loaded.can_crop:
            loaded.crop(cache, 0)
        loaded.extend(cache, [0])

    return decode_one_token


def _moved(cache: Any, place: str) -> Any:
    import torch

    with torch.inference_mode():
        return cache.to(place)


def _forward_arguments(model: Any) -> dict[str, Any]:
    """Raises ValueError if it doesn't work with a cache as other models do."""
    parameters = inspect.signature(model.forward).parameters
    if "cache" not in parameters:
        raise ValueError(f"model type {model.config.model_type!r} takes no `cache`: expected one that does")
    # Without it, the logits of all tokens are computed: slower, not wrong.
    return {"use_cache": True} | ({"logits_to_keep": 1} if "logits_to_keep" in parameters else {})


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    ends = getattr(model.generation_config, "eos_token_id", None)
    ends = [*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id]
    return frozenset(end for end in ends if end is not None)
