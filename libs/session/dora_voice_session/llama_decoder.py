"""A few tokens through a Llama on packed weights, without transformers' overhead per layer.

The same sums as `transformers.models.llama.modeling_llama`, in the order that needs the fewest kernel calls: at
30 layers every call costs as much as a percent of a token. Many tokens at once stay with transformers.
Imported only where torch is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import glu, rms_norm, scaled_dot_product_attention

from dora_voice_session.kv_cache import BlockCache, BlockLayer
from dora_voice_session.packed_linear import Int4Weight, is_packable


def can_decode(model: Any) -> bool:
    """Whether `LlamaDecoder` computes what this very model computes."""
    from transformers import LlamaForCausalLM

    config = model.config
    return (
        type(model) is LlamaForCausalLM
        and config.hidden_act == "silu"
        and not config.attention_bias
        and not config.mlp_bias
        and all(is_packable(linear) for linear in model.model.layers.modules() if isinstance(linear, nn.Linear))
    )


class LlamaDecoder:
    """The logits after some more tokens."""

    def __init__(self, model: Any, stored: Any) -> None:
        """model: in bf16, with its head packed. stored: the same model in the format it was stored in."""
        inner = model.model
        self._embedding: Tensor = inner.embed_tokens.weight.detach()
        self._rotary: nn.Module = inner.rotary_emb
        self._layers = [
            _Layer(layer, exact, model.config) for layer, exact in zip(inner.layers, stored.model.layers, strict=True)
        ]
        self._norm = _RmsNorm(inner.norm)
        self._head: nn.Module = model.lm_head

    def __call__(self, tokens: Sequence[int], cache: BlockCache) -> Tensor:
        """Appends the tokens to the cache. Returns bf16, (vocabulary,)."""
        end = cache.length + len(tokens)
        positions = torch.arange(cache.length, end)
        hidden = self._embedding[torch.tensor(tokens)]
        cosines, sines = self._rotary(hidden, positions[None])
        # Rotating by half a head swaps the halves and negates what comes first: the sign goes into the sines.
        half = sines.shape[-1] // 2
        signed = torch.cat((-sines[0, :, :half], sines[0, :, half:]), dim=-1)
        # The last token sees all.
        seen = None if len(tokens) == 1 else torch.arange(end) <= positions[:, None]
        for layer, layer_cache in zip(self._layers, cache.layers, strict=True):
            hidden = layer(hidden, cosines[0, :, None], signed[:, None], seen, layer_cache)
        return self._head(self._norm(hidden[-1:]))[0]


class _Layer:
    def __init__(self, layer: Any, stored: Any, config: Any) -> None:
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_width: int = layer.self_attn.head_dim
        self._inner_width: int = config.intermediate_size
        self._attention_norm, self._mlp_norm = _RmsNorm(layer.input_layernorm), _RmsNorm(layer.post_attention_layernorm)
        attention, mlp = stored.self_attn, stored.mlp
        self._query_key_value = _pack(attention.q_proj, attention.k_proj, attention.v_proj)
        self._output = _pack(attention.o_proj)
        # `glu` is first * sigmoid(second), and silu(gate) * up is up * sigmoid(gate) * gate.
        self._up_gate = _pack(mlp.up_proj, mlp.gate_proj)
        self._down = _pack(mlp.down_proj)

    def __call__(
        self, hidden: Tensor, cosines: Tensor, sines: Tensor, seen: Tensor | None, cache: BlockLayer
    ) -> Tensor:
        """hidden: bf16, (n, width). cosines, sines: bf16, (n, 1, head width). seen: bool, (n, all tokens), or all."""
        hidden = hidden + self._output(self._attend(self._attention_norm(hidden), cosines, sines, seen, cache))
        up_gate = self._up_gate(self._mlp_norm(hidden))
        return hidden + self._down(glu(up_gate).mul_(up_gate[:, self._inner_width :]))

    def _attend(self, hidden: Tensor, cosines: Tensor, sines: Tensor, seen: Tensor | None, cache: BlockLayer) -> Tensor:
        count = len(hidden)
        heads = self._query_key_value(hidden).view(count, -1, self._head_width)
        rotated = heads[:, : self._heads + self._kv_heads]
        swapped = rotated.roll(self._head_width // 2, -1)
        rotated.mul_(cosines).addcmul_(swapped, sines)
        # (1, key-value heads, tokens, head width); the query heads of one key-value head stand in for tokens.
        new = heads[:, self._heads :].view(count, 2, self._kv_heads, self._head_width).permute(1, 2, 0, 3)
        keys, values = cache.update(new[0][None], new[1][None])
        grouped = heads[:, : self._heads].view(count, self._kv_heads, -1, self._head_width).permute(1, 2, 0, 3)
        queries = grouped.reshape(1, self._kv_heads, -1, self._head_width)
        if seen is not None:
            seen = seen.repeat(self._heads // self._kv_heads, 1)
        attended = scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
        return attended.view(self._heads, count, self._head_width).transpose(0, 1).reshape(count, -1)


class _RmsNorm:
    """weight * hidden / sqrt(mean of squares + epsilon), row by row."""

    def __init__(self, norm: Any) -> None:
        self._weight: Tensor = norm.weight.detach()
        self._width = self._weight.numel()
        self._epsilon: float = norm.variance_epsilon
        self._zero = torch.zeros_like(self._weight)

    def __call__(self, hidden: Tensor) -> Tensor:
        if len(hidden) > 1:
            return rms_norm(hidden, (self._width,), self._weight, self._epsilon)
        # The same in half the time.
        squares = torch.linalg.vector_norm(hidden, dtype=torch.float32).item() ** 2
        factor = (squares / self._width + self._epsilon) ** -0.5
        return torch.addcmul(self._zero, hidden, self._weight, value=factor)


def _pack(*linears: nn.Linear) -> Int4Weight:
    """Layers of the same input as one."""
    return Int4Weight(torch.cat([linear.weight.detach() for linear in linears]))
