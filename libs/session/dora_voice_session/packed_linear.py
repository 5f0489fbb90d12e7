"""Linear layers in 4 and 8 bits for decoding on the CPU, with torch's own kernels. Imported only where torch is there.

Decoding one token reads every weight once, so its speed is the memory's: 4-bit weights are four times faster than
bf16. Prefill reuses a weight for many tokens and computes; there bf16 is faster, so layers keep both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

GROUP = 32
"""Inputs that share a scale and a minimum: the blocks of GGUF's Q4_1."""
LEVELS = 15
MOST_ROWS = 4
"""From five tokens on bf16 is faster, on CPUs that have instructions for it."""

_int4_matmul = torch.ops.aten._weight_int4pack_mm_for_cpu
_int8_matmul = torch.ops.aten._weight_int8pack_mm


class Groups(NamedTuple):
    """A weight (outputs, inputs) as level * scale + minimum, in fp32."""

    levels: Tensor
    """int32 in 0..15, (outputs, inputs)."""
    scales: Tensor
    """(outputs, inputs / GROUP), as are the minima."""
    minima: Tensor

    def weight(self) -> Tensor:
        grouped = self.levels.unflatten(1, (-1, GROUP)) * self.scales[..., None] + self.minima[..., None]
        return grouped.flatten(1)


def to_groups(weight: Tensor) -> Groups:
    """The nearest 16 levels in each group; exactly the stored ones if the weight was made of 16 levels."""
    grouped = weight.float().unflatten(1, (-1, GROUP))
    minima, maxima = grouped.amin(-1), grouped.amax(-1)
    scales = (maxima - minima) / LEVELS
    steps = torch.where(scales > 0, scales, 1.0)
    levels = ((grouped - minima[..., None]) / steps[..., None]).round().to(torch.int32)
    return Groups(levels.flatten(1), scales, minima)


def is_packable(linear: nn.Linear) -> bool:
    """Whether the kernels take its shape. Others they compute wrongly or crash on, without a check."""
    return linear.out_features % 16 == 0 and linear.in_features % GROUP == 0


def has_fast_kernels() -> bool:
    """Elsewhere torch has the kernels as plain loops, slower than bf16."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX")


def holds_4_bit_numbers(model: Any) -> bool:
    """Whether all layers to pack are made of 16 levels per group, so that packing loses nothing."""
    layers = layers_to_pack(model)
    return bool(layers) and all(_has_16_levels(linear.weight.detach()) for linear in layers.values())


def _has_16_levels(weight: Tensor) -> bool:
    # Narrower formats have rounded the levels away.
    if weight.dtype != torch.float32:
        return False
    groups = to_groups(weight)
    errors = (groups.weight() - weight).abs().unflatten(1, (-1, GROUP)).amax(-1)
    return bool((errors <= 1e-3 * groups.scales).all())


class Int4Weight:
    """What the 4-bit kernel reads. Levels are exact; scales and minima are rounded to bf16, as bf16 weights are."""

    def __init__(self, weight: Tensor) -> None:
        """weight: (outputs, inputs), in the format it was stored in: rounded to bf16 it has lost its levels."""
        groups = to_groups(weight)
        # The kernel computes (level - 8) * scale + zero.
        zeros = groups.minima + 8 * groups.scales
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(groups.levels, 1)
        self._scales = torch.stack((groups.scales, zeros), -1).transpose(0, 1).contiguous().bfloat16()

    def __call__(self, rows: Tensor) -> Tensor:
        """rows: bf16, (n, inputs). Returns bf16, (n, outputs)."""
        return _int4_matmul(rows, self._packed, GROUP, self._scales)


class Int8Weight:
    """What the 8-bit kernel reads: one scale per output, no minimum. For the head, which 4 bits are too coarse for."""

    def __init__(self, weight: Tensor) -> None:
        scales = weight.float().abs().amax(1) / 127
        steps = torch.where(scales > 0, scales, 1.0)
        self._packed = (weight.float() / steps[:, None]).round().to(torch.int8)
        self._scales = scales.bfloat16()

    def __call__(self, rows: Tensor) -> Tensor:
        """rows: bf16, (n, inputs). Returns bf16, (n, outputs)."""
        return _int8_matmul(rows, self._packed, self._scales)


class PackedLinear(nn.Module):
    """In the place of a bf16 `nn.Linear`: few rows through the packed weight, many through the bf16 weight."""

    def __init__(self, linear: nn.Linear, packed: Int4Weight | Int8Weight) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed = packed

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.numel() > MOST_ROWS * self.in_features:
            return nn.functional.linear(inputs, self.weight, self.bias)
        outputs = self._packed(inputs.reshape(-1, self.in_features))
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.view(*inputs.shape[:-1], self.out_features)


def layers_to_pack(model: Any) -> dict[str, nn.Linear]:
    """The linear layers that the kernels take, by name, without the head."""
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module is not head and is_packable(module)
    }


def pack_layers(model: Any, stored: Any) -> None:
    """Replaces the linear layers of a bf16 model. stored: the same model in the format it was stored in."""
    for name, linear in layers_to_pack(model).items():
        weight = stored.get_submodule(name).weight
        model.set_submodule(name, PackedLinear(linear, Int4Weight(weight.detach())))


def pack_head(model: Any, stored: Any) -> None:
    """The same for the head, in 8 bits."""
    head = model.get_output_embeddings()
    if type(head) is nn.Linear and is_packable(head):
        weight = stored.get_output_embeddings().weight
        model.set_output_embeddings(PackedLinear(head, Int8Weight(weight.detach())))
