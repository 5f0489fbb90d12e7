"""What a model is run with on this very CPU, found by short measurements. Imported only by `hf_model`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from dora_voice.threads import with_fewest_threads

MEASURED_S = 0.15
"""How long each way to compute is tried."""
MEASURED_WEIGHTS = 32_000_000
"""More than caches hold, so that a measurement reads memory, as decoding does."""


def wait_passively() -> None:
    """Lets threads sleep while they wait for each other. Read when torch is imported.

    The other nodes run on the same cores. With one of them busy, threads that spin (GOMP_SPINCOUNT=10000) took three
    times as long per token and four times per prefill; alone, they saved a sixth.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KMP_BLOCKTIME", "0")


def set_fewest_fast_threads(step: Callable[[], object]) -> None:
    """Sets torch's number of threads to the fewest with which `step` is about as fast as it gets."""
    import torch

    def work(threads: int) -> None:
        torch.set_num_threads(threads)
        step()

    torch.set_num_threads(with_fewest_threads(lambda threads: threads, work))


def most_that_are_faster(counts: Sequence[int], ours: Callable[[int], object], theirs: Callable[[int], object]) -> int:
    """The highest count of tokens at which ours takes less time; the counts go up, and from the first it's certain."""
    for count in reversed(counts[1:]):
        if _seconds(partial(ours, count)) < _seconds(partial(theirs, count)):
            return count
    return counts[0]


def decodes_faster_in_bf16(model: Any) -> bool:
    """Whether one row through the model's linear layers takes less time in bf16 than in fp32.

    bf16 is half the memory to read, but a CPU without instructions for it computes it slowly.
    """
    import torch
    from torch.nn.functional import linear

    layers = [module.weight.detach() for module in model.modules() if type(module) is torch.nn.Linear]
    sizes = accumulate(weight.numel() for weight in layers)
    measured = [weight for weight, size in zip(layers, sizes, strict=True) if size <= MEASURED_WEIGHTS] or layers[:1]

    def sweep(dtype: torch.dtype) -> Callable[[], None]:
        weights = [weight.to(dtype) for weight in measured]
        rows = [torch.ones(1, weight.shape[1], dtype=dtype) for weight in weights]

        def multiply_all() -> None:
            for row, weight in zip(rows, weights, strict=True):
                linear(row, weight)

        return multiply_all

    with torch.inference_mode():
        return _seconds(sweep(torch.bfloat16)) < _seconds(sweep(torch.float32))


def _seconds(step: Callable[[], Any]) -> float:
    """Of the fastest step: what else runs on the machine only makes it slower. The first sets things up."""
    step()
    taken = []
    began = time.perf_counter()
    while not taken or time.perf_counter() - began < MEASURED_S:
        before = time.perf_counter()
        step()
        taken.append(time.perf_counter() - before)
    return min(taken)
