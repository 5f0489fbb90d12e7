"""Tokens and cache hold the same, after everything that may happen to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session.fake_model import FakeModel, logits_after

from dora_voice_session.cached_tokens import SLICE_TOKENS, CachedTokens
from dora_voice_session.work import run


def held(tokens=(11, 12, 13, 14), **model):
    cached = CachedTokens(FakeModel(**model))
    cached.extend(list(tokens))
    return cached


def assert_agreed(cached, *tokens):
    assert cached.tokens == list(tokens)
    assert len(cached) == len(tokens)
    assert cached.is_away or list(tokens) in cached._model.caches
    if cached.logits is not None:
        assert (cached.logits == logits_after(tokens)).all()


def test_what_is_to_be_held_is_computed_in_slices_and_its_logits_come_back():
    cached, tokens = held(), [11, 12, *range(2 * SLICE_TOKENS)]
    work = cached.hold(tokens)
    next(work)
    assert len(cached) == 2 + SLICE_TOKENS
    assert (run(work) == logits_after(tokens)).all()
    assert_agreed(cached, *tokens)
    slices = len(cached._model.slices)
    assert (run(cached.hold(tokens)) == logits_after(tokens)).all()
    assert len(cached._model.slices) == slices


def test_what_is_appended_gives_the_logits_of_what_follows():
    cached = held()
    assert (cached.extend((15, 16)) == logits_after([11, 12, 13, 14, 15, 16])).all()
    assert_agreed(cached, 11, 12, 13, 14, 15, 16)


def test_a_cache_that_was_cropped_knows_no_logits():
    cached = held()
    cached.keep(2)
    assert cached.logits is None
    assert_agreed(cached, 11, 12)
    cached.extend([9])
    assert_agreed(cached, 11, 12, 9)


def test_keeping_at_least_what_there_is_changes_nothing():
    cached = held()
    cached.keep(4)
    cached.keep(9)
    assert cached.logits is not None
    assert_agreed(cached, 11, 12, 13, 14)


def test_a_cache_that_cannot_go_back_holds_nothing_then_and_knows_what_it_had():
    cached = held(can_crop=False)
    cached.keep(3)
    assert_agreed(cached)
    assert cached.ever_shared([11, 12, 13, 14]) == 3


@pytest.mark.parametrize("what", ["extend", "crop"])
def test_what_failed_half_way_leaves_nothing_half_held(what):
    cached = held()
    cached._model.fails_at = (what, cached._model.calls[what] + 1)
    with pytest.raises(MemoryError):
        cached.extend([15, 16]) if what == "extend" else cached.keep(2)
    assert_agreed(cached)
    cached.extend([9])
    assert_agreed(cached, 9)


def test_a_cache_that_is_lost_leaves_the_knowledge_of_what_it_had():
    cached = held()
    assert not cached.evict()
    assert_agreed(cached)
    assert not cached.is_away
    assert cached.ever_shared([11, 12, 9]) == 2


def test_what_was_computed_again_is_not_lost_any_more():
    cached = held()
    cached.lose()
    cached.extend([11, 12, 13, 14, 15])
    cached.keep(2)
    assert cached.ever_shared([11, 12, 13, 14]) == 2


def test_a_cache_that_is_away_comes_back_by_itself():
    cached = held(can_offload=True)
    assert cached.away_bytes == 0
    assert cached.evict()
    assert cached.is_away
    assert (cached.nbytes, cached.away_bytes) == (0, 40)
    assert cached.ever_shared([11, 12, 9]) == 2
    assert_agreed(cached, 11, 12, 13, 14)
    cached.extend([15])
    assert not cached.is_away
    assert_agreed(cached, 11, 12, 13, 14, 15)


def test_a_cache_is_cropped_while_it_is_away():
    cached = held(can_offload=True)
    cached.evict()
    cached.keep(2)
    assert cached.is_away
    assert_agreed(cached, 11, 12)
    cached.extend([9])
    assert_agreed(cached, 11, 12, 9)


def test_a_cache_that_cannot_go_back_is_given_up_where_it_is():
    cached = held(can_offload=True, can_crop=False)
    cached.evict()
    cached.keep(2)
    assert not cached.is_away
    assert_agreed(cached)


def test_a_cache_that_is_away_can_be_evicted_again():
    cached = held(can_offload=True)
    cached.evict()
    assert cached.evict()
    cached.extend([15])
    assert_agreed(cached, 11, 12, 13, 14, 15)


def test_a_cache_that_is_away_can_be_lost():
    cached = held(can_offload=True)
    cached.evict()
    cached.lose()
    assert not cached.is_away
    assert cached.away_bytes == 0
    assert_agreed(cached)
    assert cached.ever_shared([11, 12, 13, 14]) == 4


@pytest.mark.parametrize("what", ["restore", "crop"])
def test_a_cache_that_fails_to_come_back_holds_what_it_says(what):
    cached = held(can_offload=True)
    cached.evict()
    cached.keep(2)
    cached._model.fails_at = (what, 1)
    with pytest.raises(MemoryError):
        cached.extend([15])
    assert_agreed(cached, *cached.tokens)
    tokens = [*cached.tokens, 9]
    cached.extend([9])
    assert_agreed(cached, *tokens)


def test_an_eviction_that_fails_changes_nothing():
    cached = held(can_offload=True)
    cached._model.fails_at = ("offload", 1)
    with pytest.raises(MemoryError):
        cached.evict()
    assert not cached.is_away
    assert_agreed(cached, 11, 12, 13, 14)


def test_forks_know_nothing_of_each_other():
    cached = held()
    fork = cached.fork()
    cached.extend([15])
    fork.keep(1)
    fork.extend([9, 8])
    assert_agreed(cached, 11, 12, 13, 14, 15)
    assert_agreed(fork, 11, 9, 8)


def test_a_fork_of_what_is_away_is_computed_again():
    cached = held(can_offload=True)
    cached.evict()
    fork = cached.fork()
    assert_agreed(fork)
    assert fork.ever_shared([11, 12, 13, 14]) == 4
    cached.extend([15])
    assert_agreed(cached, 11, 12, 13, 14, 15)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.lists(st.integers(0, 9), min_size=1, max_size=9)),
        st.tuples(st.just("keep"), st.integers(0, 20)),
        st.tuples(st.sampled_from(["evict", "lose", "clear", "fork", "fail"]), st.none()),
    ),
    max_size=15,
)


@given(STEPS, st.booleans(), st.booleans())
def test_after_anything_tokens_and_cache_agree(steps, can_crop, can_offload):
    cached, expected = CachedTokens(FakeModel(can_crop, can_offload)), []
    for what, value in steps:
        if what == "extend":
            cached.extend(value)
            expected = [*expected, *value]
        elif what == "keep":
            cached.keep(value)
            expected = expected[:value] if can_crop or value >= len(expected) else []
        elif what == "fork":
            was_away, cached = cached.is_away, cached.fork()
            expected = [] if was_away else expected
        elif what == "fail":
            cached._model.fails_at = ("extend", cached._model.calls["extend"] + 1)
            with pytest.raises(MemoryError):
                cached.extend([1, 2])
            expected = []
        else:
            expected = expected if getattr(cached, what)() else []
        assert_agreed(cached, *expected)


def test_there_is_nothing_to_evict_before_something_is_held():
    cached = CachedTokens(FakeModel(can_offload=True))
    assert not cached.evict()
    assert not cached.is_away
