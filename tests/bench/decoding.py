"""How fast the default model decodes and prefills, beside others on the same weights, and how near it stays to fp32."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.measuring import Report, interleaved_s

from dora_voice_llm import weights
from dora_voice_session.hf_model import HfModel
from dora_voice_session.schema import ChatMessage, Generation
from dora_voice_session.session import Session
from dora_voice_session.work import run

STORY = "Tell me a story about a robot by the sea."
DECODED_TOKENS = 64
COMPARED_TOKENS = 150


def bench_decoding(report: Report, model: HfModel, prompts: Sequence[str], rounds: int) -> None:
    """Greedy, the same prompt, the same threads."""
    report.title(f"decoding {DECODED_TOKENS} tokens, and prefill")
    torch_models = {f"transformers {dtype}": _transformers_model(dtype) for dtype in ("fp32", "bf16")}
    prompt = _prompt(model, STORY)
    rivals: dict[str, Callable[[], object]] = {
        "dora-voice": lambda: _reply(model, len(prompt)),
        "dora-voice, bare steps without a session": lambda: _decode(model, prompt),
        **{name: _generation(rival, prompt) for name, rival in torch_models.items()},
        **_llama_cpp(prompt, model.threads),
    }
    speeds = {name: DECODED_TOKENS / taken_s for name, taken_s in interleaved_s(rivals, rounds).items()}
    for name, speed in speeds.items():
        report.add(f"{name}, with its prefill of {len(prompt)} tokens", speed, "tokens/s")
    ratio = speeds["dora-voice"] / speeds["transformers bf16"]
    report.judge("dora-voice / transformers' generate() in bf16", ratio, "x", at_least=2)
    if "llama.cpp" in speeds:
        report.add("dora-voice / llama.cpp on the same weights", speeds["dora-voice"] / speeds["llama.cpp"], "x")
    else:
        print("  llama.cpp: not measured (pip install llama-cpp-python)")
    bound = _bandwidth_bound(model, torch_models["transformers bf16"])
    report.add("limit by the memory's bandwidth, measured now", bound, "tokens/s")
    report.add("dora-voice / that limit", speeds["dora-voice"] / bound, "x")
    for n in (32, 256, 1024):
        _bench_prefill(report, model, torch_models["transformers bf16"], (prompt * 64)[:n], rounds)
    _bench_agreement(report, model, torch_models["transformers fp32"], prompts)


def _bench_prefill(report: Report, model: HfModel, bf16: Any, tokens: Sequence[int], rounds: int) -> None:
    rivals = {"ours": lambda: model.extend(model.new_cache(), tokens), "bf16": lambda: _forward(bf16, tokens)}
    taken = interleaved_s(rivals, 2 * rounds)
    report.add(f"prefill of {len(tokens)} tokens", len(tokens) / taken["ours"], "tokens/s")
    what = f"prefill of {len(tokens)} tokens, time / transformers bf16"
    report.judge(what, taken["ours"] / taken["bf16"], "x", at_most=1.1)


def _bench_agreement(report: Report, model: HfModel, exact: Any, prompts: Sequence[str]) -> None:
    """Which token comes next in what fp32 says to the prompts."""
    same = tokens = 0
    for text in prompts:
        prompt = _prompt(model, text)
        reply = _generated(exact, prompt, max_new_tokens=min(DECODED_TOKENS, COMPARED_TOKENS - tokens))
        cache = model.new_cache()
        logits = model.extend(cache, prompt)
        for token in reply:
            same += int(logits.argmax()) == token
            logits = model.extend(cache, [token])
        tokens += len(reply)
        if tokens >= COMPARED_TOKENS:
            break
    report.judge(f"of {tokens} tokens of fp32's replies, the same one", 100 * same / tokens, "%", at_least=96)


def _prompt(model: HfModel, text: str) -> list[int]:
    return model.tokenize(model.render([{"role": "user", "content": text}]))


# Ours


def _reply(model: HfModel, prompt_tokens: int) -> None:
    """The whole path: a session that answers."""
    session = Session("decoding", model, context_tokens=2048)
    session.add([ChatMessage(role="user", content=STORY)])
    # The penalty keeps the reply from ending early.
    usage = run(session.generate(generation=Generation(max_new_tokens=DECODED_TOKENS, length_penalty=10))).usage
    assert (usage.input_tokens, usage.generated_tokens) == (prompt_tokens, DECODED_TOKENS)


def _decode(model: HfModel, prompt: Sequence[int]) -> None:
    cache = model.new_cache()
    logits = model.extend(cache, prompt)
    for _ in range(DECODED_TOKENS - 1):
        logits = model.extend(cache, [int(logits.argmax())])


# Others


def _transformers_model(dtype: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    formats = {"fp32": torch.float32, "bf16": torch.bfloat16}
    return AutoModelForCausalLM.from_pretrained(weights.installed(), dtype=formats[dtype]).eval()


def _generation(rival: Any, prompt: Sequence[int]) -> Callable[[], object]:
    return lambda: _generated(rival, prompt, min_new_tokens=DECODED_TOKENS, max_new_tokens=DECODED_TOKENS)


def _generated(rival: Any, prompt: Sequence[int], **lengths: int) -> list[int]:
    import torch

    tokens = torch.tensor([list(prompt)])
    whole = rival.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, **lengths)
    return whole[0, len(prompt) :].tolist()


def _forward(rival: Any, tokens: Sequence[int]) -> None:
    import torch

    with torch.inference_mode():
        rival(torch.tensor([list(tokens)]), logits_to_keep=1)


def _llama_cpp(prompt: Sequence[int], threads: int) -> dict[str, Callable[[], object]]:
    """llama.cpp on the GGUF file that the default model was made from, if it is installed."""
    try:
        llama_cpp = import_module("llama_cpp")
    except ImportError:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        weights.unpack(weights.download(Path(folder)), Path(folder))
        rival = llama_cpp.Llama(
            str(Path(folder) / weights.GGUF), n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def decode() -> None:
        rival.reset()
        for _, _ in zip(range(DECODED_TOKENS), rival.generate(list(prompt), temp=0.0), strict=False):
            pass

    return {"llama.cpp": decode}


def _bandwidth_bound(model: HfModel, same: Any) -> float:
    """Tokens per second if reading each weight once, and adding it up, were all that decoding has to do."""
    import torch

    numbers = torch.ones(2**27)
    read_s = interleaved_s({"read": numbers.sum}, rounds=5)["read"]
    head = same.get_output_embeddings().weight.numel()
    others = sum(parameter.numel() for name, parameter in same.named_parameters() if "layers" in name)
    # 4 bits and, for each 32 of them, two numbers in bf16; the head in 8 bits.
    per_weight, per_head_weight = {"int4": (5 / 8, 1), "bf16": (2, 2), "fp32": (4, 4)}[model.dtype]
    return numbers.nbytes / read_s / (others * per_weight + head * per_head_weight)
