"""Crops cost nothing, forks are independent, and what a cache holds is what it was given."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dora_voice_session.kv_cache import BLOCK, BlockCache, BlockLayer, ForeignCache, room, tensors_in


def append(cache: BlockCache, numbers: list[int]) -> torch.Tensor:
    """One forward pass that keeps each number in both layers. Returns all that the second has."""
    new = torch.tensor(numbers, dtype=torch.float32)[None, None, :, None].expand(1, 2, -1, 3)
    cache.update(new, -new, 0)
    kept, negated = cache.update(new, -new, 1)
    assert torch.equal(kept, -negated)
    return kept[0, 1, :, 2]


def held(cache: BlockCache) -> list[int]:
    """What it holds, read with one more number, which is taken back."""
    found = append(cache, [-1]).tolist()
    cache.keep(cache.length - 1)
    return [int(number) for number in found[:-1]]


def empty() -> BlockCache:
    return BlockCache([BlockLayer(), BlockLayer()])


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["append", "keep", "fork", "drop"]), st.integers(0, 9), st.integers(0, 2 * BLOCK)),
    max_size=30,
)


@given(OPERATIONS)
def test_each_fork_holds_what_a_list_would(operations):
    caches, lists, fresh = [empty()], [[]], 0
    for operation, which, amount in operations:
        i = which % len(caches)
        if operation == "append" and amount:
            new = list(range(fresh, fresh + amount))
            fresh += amount
            append(caches[i], new)
            lists[i] = lists[i] + new
        elif operation == "keep":
            caches[i].keep(amount)
            lists[i] = lists[i][:amount]
        elif operation == "fork":
            caches.append(caches[i].fork())
            lists.append(lists[i])
        elif operation == "drop" and len(caches) > 1:
            del caches[i], lists[i]
        assert [cache.length for cache in caches] == [len(numbers) for numbers in lists]
    assert [held(cache) for cache in caches] == lists


def block(cache: BlockCache) -> int:
    """Where the second layer's keys are."""
    return cache.layers[1]._block.keys.data_ptr()


def test_memory_is_copied_only_by_a_write_that_would_disturb_a_fork():
    cache = empty()
    append(cache, [1, 2, 3])
    place = block(cache)
    cache.keep(1)
    append(cache, [4])
    assert block(cache) == place
    snapshot = cache.fork()
    append(cache, [5])
    assert block(cache) == block(snapshot) == place
    append(snapshot, [6])
    assert block(cache) == place != block(snapshot)


def test_a_fork_that_is_gone_needs_no_copy():
    cache = empty()
    append(cache, [1, 2])
    place = block(cache)
    snapshot = cache.fork()
    append(cache, [3])
    del cache
    append(snapshot, [4])
    assert block(snapshot) == place
    assert held(snapshot) == [1, 2, 4]


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (BLOCK, 1), (BLOCK + 1, 2)])
def test_memory_grows_in_blocks(tokens, blocks):
    cache = empty()
    assert cache.nbytes == 0
    append(cache, [0] * tokens)
    assert room(tokens) == blocks * BLOCK
    assert cache.nbytes == 2 * 2 * blocks * BLOCK * 2 * 3 * 4


def test_it_moves_to_other_memory_and_back_without_the_unused_room():
    cache = empty()
    append(cache, [1, 2, 3])
    away = cache.to("cpu")
    assert away.nbytes == cache.nbytes * 3 // BLOCK
    append(cache, [4])
    back = away.to("cpu")
    append(back, [5])
    assert (held(cache), held(away), held(back)) == ([1, 2, 3, 4], [1, 2, 3], [1, 2, 3, 5])
    assert held(empty().to("cpu")) == []


class State:
    def __init__(self) -> None:
        self.windows = {"first": [torch.ones(2)], "second": (torch.ones(3),)}
        self.shared = self.windows["first"][0]
        self.itself = self
        self.kind = State
        self.steps = 4


def test_a_foreign_cache_is_copied_with_all_its_tensors():
    cache = ForeignCache(State(), 4)
    assert [len(tensor) for tensor in tensors_in(cache.state)] == [2, 3]
    assert cache.nbytes == 5 * 4
    for copied in (cache.fork(), cache.to("cpu")):
        assert (copied.length, copied.state.steps) == (4, 4)
        assert copied.state.shared is copied.state.windows["first"][0]
        cache.state.shared.zero_()
        assert copied.state.shared.tolist() == [1, 1]
        cache.state.shared.fill_(1)


def test_a_foreign_cache_moves_all_its_tensors():
    moved = ForeignCache(State(), 4).to("meta")
    assert {tensor.device.type for tensor in tensors_in(moved.state)} == {"meta"}
