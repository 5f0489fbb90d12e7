"""Four and eight bits: exact where the weights are, near where they aren't, and never where the kernels can't."""

from __future__ import annotations

import pytest
import torch
from session.tiny_model import make_tiny_model
from torch import nn
from transformers import AutoModelForCausalLM

from dora_voice_session.kv_cache import BlockCache
from dora_voice_session.llama_decoder import LlamaDecoder, can_decode
from dora_voice_session.packed_linear import (
    GROUP,
    Int4Weight,
    Int8Weight,
    PackedLinear,
    holds_4_bit_numbers,
    is_packable,
    layers_to_pack,
    pack_head,
    pack_layers,
    to_groups,
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(5)


def four_bit_weight(outputs: int, inputs: int) -> torch.Tensor:
    """As in a Q4_1 file: levels, and a scale and a minimum per group in float16; each group reaches both ends."""
    levels = torch.randint(0, 16, (outputs, inputs // GROUP, GROUP))
    levels[..., 0], levels[..., 1] = 0, 15
    scales = (torch.rand(outputs, inputs // GROUP, 1) + 0.1).half().float()
    minima = -torch.rand(outputs, inputs // GROUP, 1).half().float()
    return (levels * scales + minima).flatten(1)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def test_stored_4_bit_numbers_are_found_again():
    weight = four_bit_weight(48, 96)
    torch.testing.assert_close(to_groups(weight).weight(), weight, rtol=0, atol=1e-6)


def test_other_weights_are_off_by_half_a_level_at_most():
    weight = torch.randn(48, 96)
    groups = to_groups(weight)
    off = (groups.weight() - weight).abs().unflatten(1, (-1, GROUP)).amax(-1)
    assert (off <= groups.scales * 0.5 + 1e-6).all()


def test_a_group_of_one_number_is_exact():
    weight = torch.full((16, GROUP), -0.75)
    assert torch.equal(to_groups(weight).weight(), weight)
    rows = torch.ones(1, GROUP, dtype=torch.bfloat16)
    assert Int4Weight(weight)(rows).tolist() == [[-24.0] * 16]
    assert Int8Weight(torch.zeros(16, GROUP))(rows).tolist() == [[0.0] * 16]


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (48, 96), (576, 1536)])
def test_few_rows_are_near_the_exact_product(rows, outputs, inputs):
    weight, row = four_bit_weight(outputs, inputs), torch.randn(rows, inputs, dtype=torch.bfloat16)
    exact = row.float() @ weight.T
    assert relative_error(Int4Weight(weight)(row), exact) < 0.01
    assert relative_error(Int8Weight(weight)(row), exact) < 0.02


@pytest.mark.parametrize("bias", [True, False])
def test_many_rows_go_through_the_bf16_weight(bias):
    linear = nn.Linear(64, 48, bias=bias, dtype=torch.bfloat16)
    packed = PackedLinear(linear, Int4Weight(linear.weight.detach()))
    many, few = torch.randn(1, 5, 64).bfloat16(), torch.randn(1, 4, 64).bfloat16()
    with torch.inference_mode():
        assert torch.equal(packed(many), linear(many))
        assert not torch.equal(packed(few), linear(few))
        assert packed(few).shape == (1, 4, 48)
        assert relative_error(packed(few), linear(few)) < 0.15


@pytest.mark.parametrize(
    ("outputs", "inputs", "fits"), [(16, 32, True), (40, 64, False), (16, 33, False), (1, 32, False)]
)
def test_shapes_that_the_kernels_cannot_take_are_known(outputs, inputs, fits):
    assert is_packable(nn.Linear(inputs, outputs)) == fits


def read(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def test_odd_layers_stay_as_they_are(tmp_path):
    folder = make_tiny_model(tmp_path, intermediate_size=72)
    model = read(folder, torch.bfloat16)
    pack_layers(model, read(folder, torch.float32))
    layer = model.model.layers[0]
    assert type(layer.self_attn.q_proj) is PackedLinear
    assert type(layer.mlp.up_proj) is type(layer.mlp.down_proj) is nn.Linear
    assert not can_decode(model)
    pack_head(model, model)
    assert type(model.lm_head) is nn.Linear, "its vocabulary is no multiple of 16"


def test_a_model_made_of_4_bit_numbers_is_recognised(tmp_path):
    model = read(make_tiny_model(tmp_path), torch.float32)
    assert not holds_4_bit_numbers(model)
    for linear in layers_to_pack(model).values():
        linear.weight.data = four_bit_weight(*linear.weight.shape)
    assert holds_4_bit_numbers(model)
    assert not holds_4_bit_numbers(model.bfloat16())


@pytest.mark.parametrize("settings", [{}, {"num_key_value_heads": 4}, {"vocab_size": 112, "tie_word_embeddings": True}])
def test_the_llama_decoder_computes_what_transformers_computes_with_packed_layers(tmp_path, settings):
    folder = make_tiny_model(tmp_path, **settings)
    stored, packed, bare = (read(folder, dtype) for dtype in (torch.float32, torch.bfloat16, torch.bfloat16))
    with torch.inference_mode():
        pack_layers(packed, stored)
        for model in (packed, bare):
            pack_head(model, stored)
        assert can_decode(bare)
        decoder = LlamaDecoder(bare, stored)
        cache, expected_cache = BlockCache.for_model(bare), BlockCache.for_model(packed)
        for tokens in ([2, 3, 4], [5], [6], *([token] for token in range(7, 25)), [25, 26, 27, 28], [29]):
            found = decoder(tokens, cache)
            expected = packed(torch.tensor([tokens]), cache=expected_cache, use_cache=True).logits[0, -1]
            assert relative_error(found, expected) < 0.05
        assert cache.length == 28


@pytest.mark.parametrize(
    ("kind", "settings"), [("qwen3", {}), ("llama", {"attention_bias": True}), ("llama", {"hidden_act": "gelu"})]
)
def test_the_llama_decoder_takes_nothing_else(tmp_path, kind, settings):
    assert not can_decode(read(make_tiny_model(tmp_path, kind=kind, **settings), torch.bfloat16))
