"""Small transformers models of several kinds, and the default model: equal to a fresh start, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from session.tiny_model import make_tiny_model

from dora_voice_llm import weights
from dora_voice_session import cpu_speed, hf_model
from dora_voice_session.cache_probe import PROBE_END, PROBE_START, probe_tokens
from dora_voice_session.hf_model import HfModel, load
from dora_voice_session.kv_cache import BLOCK
from dora_voice_session.packed_linear import PackedLinear

THINKING = "{{ '<think>' if enable_thinking else '<silent>' }}{{ messages[0].content }}"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Tiny models in fp32 by kind, each loaded once."""
    models: dict[str, HfModel] = {}

    def get(kind: str) -> HfModel:
        if kind not in models:
            models[kind] = load(str(make_tiny_model(tmp_path_factory.mktemp(kind), kind=kind)), "fp32", threads=1)
        return models[kind]

    return get


@pytest.fixture(scope="module")
def llama(loaded):
    return loaded("llama")


def fresh(model: HfModel, tokens):
    """One forward pass over everything."""
    return model.extend(model.new_cache(), tokens)


def assert_fresh(model: HfModel, logits, tokens):
    np.testing.assert_allclose(logits, fresh(model, tokens), atol=1e-4)


# Caches

TOKENS = st.lists(st.integers(2, 90), min_size=1, max_size=30)
STEPS = st.lists(st.tuples(st.sampled_from(["extend", "crop", "fork"]), st.integers(0, 5), TOKENS), max_size=8)


@settings(max_examples=40)
@given(STEPS)
def test_after_any_steps_each_fork_has_the_logits_of_a_fresh_prefill(llama, steps):
    caches, texts = [llama.new_cache()], [[]]
    for step, which, tokens in steps:
        i = which % len(caches)
        if step == "extend":
            texts[i] = texts[i] + tokens
            assert_fresh(llama, llama.extend(caches[i], tokens), texts[i])
        elif step == "crop":
            texts[i] = texts[i][: len(tokens)]
            llama.crop(caches[i], len(texts[i]))
        else:
            caches.append(llama.fork(caches[i]))
            texts.append(texts[i])
        assert [llama.cache_length(cache) for cache in caches] == [len(text) for text in texts]
    for cache, text in zip(caches, texts, strict=True):
        assert_fresh(llama, llama.extend(cache, [3]), [*text, 3])


FORGETFUL = ["mistral", "lfm2", "qwen3_next", "falcon_h1", "mamba"]


@pytest.mark.parametrize("kind", ["llama", "qwen3", *FORGETFUL])
def test_a_text_in_slices_equals_the_text_in_one(loaded, kind):
    model = loaded(kind)
    assert model.can_crop == (kind not in FORGETFUL)
    tokens = [(11 * i) % 89 + 2 for i in range(40)]
    cache = model.new_cache()
    assert model.cache_length(cache) == 0
    for start, end in ((0, 1), (1, 9), (9, 10), (10, 30), (30, 40)):
        assert_fresh(model, model.extend(cache, tokens[start:end]), tokens[:end])
        assert model.cache_length(cache) == end


@pytest.mark.parametrize("kind", FORGETFUL)
def test_forks_of_models_that_forget_are_independent(loaded, kind):
    model = loaded(kind)
    cache = model.new_cache()
    model.extend(cache, [5, 6, 7, 8, 9])
    fork = model.fork(cache)
    assert_fresh(model, model.extend(cache, [10, 11]), [5, 6, 7, 8, 9, 10, 11])
    assert_fresh(model, model.extend(fork, [20]), [5, 6, 7, 8, 9, 20])
    assert (model.cache_length(cache), model.cache_length(fork)) == (7, 6)


@pytest.mark.parametrize(("kind", "reason"), [("recurrent_gemma", "in two steps"), ("rwkv", "takes no `cache`")])
def test_a_model_that_cannot_go_on_is_refused_by_name(loaded, kind, reason):
    with pytest.raises(ValueError, match=f"model type '{kind}' .*{reason}"):
        loaded(kind)


@pytest.mark.parametrize("kind", ["llama", *FORGETFUL])
def test_the_memory_of_a_cache_is_foreseen(loaded, kind):
    model = loaded(kind)
    for tokens in (10, 100, BLOCK + 1):
        cache = model.new_cache()
        model.extend(cache, [5] * tokens)
        assert cache.nbytes <= model.cache_bytes(tokens)
        if kind == "llama":
            assert cache.nbytes == model.cache_bytes(tokens)


@pytest.mark.parametrize("kind", ["llama", *FORGETFUL])
def test_a_cache_goes_to_the_host_and_back(loaded, kind, monkeypatch):
    model = loaded(kind)
    cache = model.new_cache()
    model.extend(cache, [5, 6, 7])
    assert model.offload(cache) is None, "it is there already"
    monkeypatch.setattr(model, "device", "meta")
    away = model.offload(cache)
    assert away is not None
    monkeypatch.setattr(model, "device", "cpu")
    assert_fresh(model, model.extend(cache, [8]), [5, 6, 7, 8])
    assert_fresh(model, model.extend(model.restore(away), [9]), [5, 6, 7, 9])


# Text


def test_what_is_loaded_knows_its_text_side(llama):
    messages = [{"role": "user", "content": "Hi."}]
    rendering = llama.render(messages)
    assert rendering == "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n"
    assert llama.render(messages, add_generation_prompt=False) == "<|im_start|>user\nHi.<|im_end|>\n"
    tokens = llama.tokenize(rendering)
    assert tokens[0] == 0
    assert llama.decode(tokens) == "user\nHi.\nassistant\n"
    assert llama.end_tokens == {1}
    assert llama.special_texts == ("<|im_start|>", "<|im_end|>")
    assert llama.most_positions == 4096
    assert llama.template_switches == frozenset()
    assert (llama.dtype, llama.device, llama.decoder) == ("fp32", "cpu", "transformers")


def test_a_template_has_its_switches(tmp_path):
    model = load(str(make_tiny_model(tmp_path, chat_template=THINKING)), "fp32", threads=1)
    messages = [{"role": "user", "content": "Hi."}]
    assert model.template_switches == {"enable_thinking"}
    assert model.render(messages) == "<silent>Hi."
    assert model.render(messages, enable_thinking=True) == "<think>Hi."


# Settings


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mamba"])
@pytest.mark.parametrize(("dtype", "bound"), [("bf16", 0.5), ("int4", 3.0)])
def test_a_narrower_format_is_a_setting(loaded, tmp_path, kind, dtype, bound):
    rounded = load(str(make_tiny_model(tmp_path, kind=kind)), dtype, threads=1)
    assert rounded.dtype == dtype
    cache, exact_cache = rounded.new_cache(), loaded(kind).new_cache()
    for tokens in ([5, 6, 7, 8, 9, 10], [11], [12]):
        near, exact = rounded.extend(cache, tokens), loaded(kind).extend(exact_cache, tokens)
        assert near.dtype == np.float32
        assert not np.array_equal(exact, near)
        np.testing.assert_allclose(exact, near, atol=bound)


@pytest.mark.parametrize(
    ("kind", "dtype", "setting", "decoder", "in_transformers"),
    [
        ("llama", "int4", "auto", "llama", False),
        ("llama", "int4", "transformers", "packed layers", True),
        ("qwen3", "int4", "auto", "packed layers", True),
        ("llama", "bf16", "auto", "transformers", True),
    ],
)
def test_what_decodes_is_a_setting_and_is_told(loaded, tmp_path, kind, dtype, setting, decoder, in_transformers):
    model = load(str(make_tiny_model(tmp_path, kind=kind)), dtype, threads=1, decoder=setting)
    assert (model.decoder, model.dtype) == (decoder, dtype)
    packed = [each for each in model._forward.model.modules() if isinstance(each, PackedLinear)]
    assert bool(packed) == (decoder == "packed layers")
    cache, calls = model.new_cache(), []
    model.extend(cache, [5, 6, 7, 8, 9, 10])
    model._forward.model.register_forward_hook(lambda *_: calls.append(1))
    near = model.extend(cache, [11])
    assert bool(calls) == in_transformers
    np.testing.assert_allclose(near, fresh(loaded(kind), [5, 6, 7, 8, 9, 10, 11]), atol=3.0)


@pytest.mark.parametrize("tokens", [1, 7, PROBE_START + PROBE_END, 99])
def test_a_model_is_probed_with_as_many_tokens_whatever_its_tokenizer(tokens):
    assert len(probe_tokens(lambda text: list(range(tokens)))) == PROBE_START + PROBE_END


@pytest.mark.parametrize(("faster_in_bf16", "dtype"), [(True, "bf16"), (False, "fp32")])
def test_auto_takes_the_faster_format_if_4_bits_would_lose_something(tmp_path, monkeypatch, faster_in_bf16, dtype):
    monkeypatch.setattr(hf_model, "decodes_faster_in_bf16", lambda model: faster_in_bf16)
    assert load(str(make_tiny_model(tmp_path)), device="cpu", threads=1).dtype == dtype


def test_torch_gets_the_fewest_threads_that_are_fast(monkeypatch):
    before, tried = torch.get_num_threads(), []
    monkeypatch.setattr(cpu_speed, "with_fewest_threads", lambda make, work: work(make(3)) or make(1))
    try:
        cpu_speed.set_fewest_fast_threads(lambda: tried.append(torch.get_num_threads()))
        assert (tried, torch.get_num_threads()) == ([3], 1)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("ours", "most"), [({32: 9, 16: 9, 8: 9}, 1), ({32: 9, 16: 1, 8: 1}, 16), ({32: 1}, 32)])
def test_a_llama_takes_as_many_tokens_as_it_is_faster_with(monkeypatch, ours, most):
    monkeypatch.setattr(cpu_speed, "_seconds", lambda step: step())
    assert cpu_speed.most_that_are_faster((1, 8, 16, 32), ours.__getitem__, lambda count: 5) == most


def test_more_tokens_than_a_llama_decoder_takes_go_through_transformers(tmp_path):
    model = load(str(make_tiny_model(tmp_path)), "int4", threads=1)
    model.llama_tokens = 3
    calls = []
    model._forward.model.register_forward_hook(lambda *_: calls.append(1))
    cache = model.new_cache()
    for tokens, through_transformers in (([5, 6, 7], 0), ([8, 9, 10, 11], 1), ([12], 0)):
        calls.clear()
        model.extend(cache, tokens)
        assert len(calls) == through_transformers
    assert model.cache_length(cache) == 8


@pytest.mark.parametrize(("bf16_s", "is_faster"), [(1.0, True), (3.0, False)])
def test_the_faster_format_is_measured_with_all_the_layers(llama, monkeypatch, bf16_s, is_faster):
    multiplied = []
    monkeypatch.setattr(torch.nn.functional, "linear", lambda row, weight: multiplied.append((row, weight)))

    def seconds(step):
        multiplied.clear()
        step()
        assert len(multiplied) == 2 * 7 + 1
        assert all(row.shape == (1, weight.shape[1]) for row, weight in multiplied)
        (dtype,) = {each.dtype for pair in multiplied for each in pair}
        return {torch.bfloat16: bf16_s, torch.float32: 2.0}[dtype]

    monkeypatch.setattr(cpu_speed, "_seconds", seconds)
    assert cpu_speed.decodes_faster_in_bf16(llama._forward.model) == is_faster


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int8"}, "dtype 'int8': expected auto, fp32, bf16, int4"),
        ({"device": "tpu"}, "device 'tpu': expected auto, cpu, cuda"),
        ({"decoder": "llama"}, "decoder 'llama': expected auto, transformers"),
        ({"threads": -1}, "threads -1: expected 0"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        load(str(tmp_path), **settings)


@pytest.mark.parametrize(
    ("has_gpu", "settings", "message"),
    [(False, {"device": "cuda"}, "torch finds no GPU"), (True, {"dtype": "int4"}, "'int4' on device 'cuda'")],
)
def test_a_gpu_is_not_made_up(tmp_path, monkeypatch, has_gpu, settings, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    with pytest.raises(ValueError, match=message):
        load(str(tmp_path), **settings)


def test_a_model_that_cannot_chat_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no chat template"):
        load(str(make_tiny_model(tmp_path, chat_template=None)), "fp32", threads=1)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises((OSError, ValueError)):
        load(str(tmp_path), "fp32", threads=1)


# The default model in 4 bits

REPLIES = [
    (
        "Tell me a story about a robot that learns to cook.",
        (
            'One day, in a bustling city, a robot named "Echo" was tasked with a mission to learn to cook. Echo was a '
            "massive, three-legged robot with a humanoid body and a robotic tail. The humanoid body was a sleek, "
            "futuristic robot with a humanoid head and a robotic tail. Echo's humanoid head was a humanoid robot with "
            "a robotic tail, and its robotic tail was a robotic tail with a humanoid head.\n\n"
            "Echo's mission was to learn to cook by experimenting with various recipes and cooking techniques. Echo "
            'was tasked with a variety of recipes, including a recipe for "Echo\'s Ego," which was a recipe that '
            "involved a"
        ),
    ),
    (
        "Explain in simple words why the sky is blue.",
        (
            "The sky is blue because of a process called Rayleigh scattering. When sunlight reaches our planet, it's "
            "made up of different colors of light. Blue light has shorter wavelengths than other colors of light, "
            "which makes it scattered in different directions. This is known as Rayleigh scattering. When light passes"
            " through a large amount of water, it's absorbed by the water molecules, and the blue light is not "
            "reflected back. So, the blue light is scattered in all directions, but the blue light is only scattered "
            "by the water molecules, not the other colors of light. This is why the sky appears blue."
        ),
    ),
]
"""Questions, and what the default model in fp32 says to them."""
AGREEMENT = 0.96
"""Least share of tokens that fp32 would choose too."""
LARGEST_DIFFERENCE = 2.0
"""Of a logit from fp32's; bf16 in transformers is off by up to 0.9, logits reach from -20 to 30."""


@pytest.fixture(scope="module")
def default_model():
    return load(str(weights.installed()), "auto", "cpu", threads=torch.get_num_threads())


@pytest.fixture(scope="module")
def teacher_forced(default_model):
    """Token ids of each conversation, where its reply begins, and the logits of fp32 from there on."""
    exact = load(str(weights.installed()), "fp32", "cpu", threads=torch.get_num_threads())
    texts = []
    for question, reply in REPLIES:
        prompt = exact.tokenize(exact.render([{"role": "user", "content": question}]))
        texts.append(
            (tokens := prompt + exact.tokenize(reply), len(prompt), all_logits(exact, tokens)[len(prompt) - 1 :])
        )
    return texts


def all_logits(model: HfModel, tokens):
    """One forward pass in transformers, shape (tokens, vocabulary)."""
    with torch.inference_mode():
        return model._forward.model(torch.tensor([tokens])).logits[0].float().numpy()


def agreement(pairs):
    same = np.concatenate([found.argmax(-1) == exact.argmax(-1) for found, exact in pairs])
    return same.mean()


def test_the_default_model_is_4_bit(default_model):
    assert (default_model.dtype, default_model.decoder) == ("int4", "llama")
    assert default_model.can_crop


def test_prefill_agrees_with_fp32(default_model, teacher_forced):
    pairs = [(all_logits(default_model, tokens)[start - 1 :], exact) for tokens, start, exact in teacher_forced]
    assert agreement(pairs) >= AGREEMENT
    assert max(np.abs(found - exact).max() for found, exact in pairs) <= LARGEST_DIFFERENCE


def test_decode_agrees_with_fp32(default_model, teacher_forced):
    pairs = []
    for tokens, start, exact in teacher_forced:
        cache = default_model.new_cache()
        found = [default_model.extend(cache, tokens[:start])]
        found += [default_model.extend(cache, [token]) for token in tokens[start:]]
        pairs.append((np.array(found), exact))
    assert agreement(pairs) >= AGREEMENT
    assert max(np.abs(found - exact).max() for found, exact in pairs) <= LARGEST_DIFFERENCE
