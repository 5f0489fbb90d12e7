"""The cache never lies: it holds exactly the session's tokens, and only what is new is computed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session.fake_model import FakeModel, logits_after

from dora_voice_session.session import SLICE_TOKENS, Session, common_prefix


def finish(work):
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value


def prefilled(tokens, model=None):
    session = Session(model or FakeModel())
    finish(session.prefill(tokens))
    return session


def test_a_new_turn_computes_only_its_own_tokens():
    session = prefilled([1, 2, 3])
    session.append(4)
    logits = finish(session.prefill([1, 2, 3, 4, 5, 6]))
    assert (session.kept, session.computed) == (4, 2)
    np.testing.assert_array_equal(logits, logits_after([1, 2, 3, 4, 5, 6]))


def test_a_reply_cut_to_what_was_heard_is_cropped_and_only_what_follows_is_computed():
    session = prefilled([1, 2, 3, 4, 5, 6, 7])
    finish(session.prefill([1, 2, 3, 4, 9]))
    assert session.tokens == (1, 2, 3, 4, 9)
    assert (session.kept, session.computed) == (4, 1)


def test_the_same_tokens_again_compute_the_last_one_for_its_logits():
    session = prefilled([1, 2, 3])
    np.testing.assert_array_equal(finish(session.prefill([1, 2, 3])), logits_after([1, 2, 3]))
    assert (session.kept, session.computed) == (2, 1)


def test_a_long_prefill_has_a_checkpoint_after_each_slice():
    model = FakeModel()
    checkpoints = sum(1 for _ in Session(model).prefill(range(2 * SLICE_TOKENS + 1)))
    assert checkpoints == 2
    assert model.slices == [SLICE_TOKENS, SLICE_TOKENS, 1]


def test_a_prefill_closed_half_way_keeps_what_it_computed_and_goes_on_from_there():
    session, tokens = Session(FakeModel()), list(range(100))
    work = session.prefill(tokens)
    next(work)
    work.close()
    assert session.tokens == tuple(range(SLICE_TOKENS))
    assert session.cache_length == session.computed == SLICE_TOKENS
    finish(session.prefill(tokens))
    assert (session.kept, session.computed) == (SLICE_TOKENS, 100 - SLICE_TOKENS)


def test_a_failed_step_leaves_nothing_half_held():
    model = FakeModel()
    session = prefilled([1, 2, 3], model)
    model.fails_next = True
    with pytest.raises(MemoryError):
        finish(session.prefill([1, 2, 3, 4, 5]))
    assert session.tokens == ()
    assert session.cache_length == 0
    np.testing.assert_array_equal(finish(session.prefill([1, 2])), logits_after([1, 2]))


def test_a_cache_that_cannot_go_back_is_replayed():
    session = prefilled([1, 2, 3, 4], FakeModel(can_crop=False))
    logits = finish(session.prefill([1, 2, 5]))
    assert (session.kept, session.computed) == (0, 3)
    np.testing.assert_array_equal(logits, logits_after([1, 2, 5]))


def test_nothing_to_prefill_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        finish(Session(FakeModel()).prefill([]))


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=80)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["prefill", "close", "fail"]), TOKENS),
        st.tuples(st.just("append"), st.integers(0, 2)),
        st.tuples(st.just("edit"), st.integers(0, 80)),
    ),
    max_size=12,
)


@given(STEPS, st.booleans())
def test_after_anything_tokens_and_cache_agree_and_logits_are_those_of_a_fresh_start(steps, can_crop):
    model = FakeModel(can_crop)
    session = Session(model)
    for what, value in steps:
        before, logits = session.tokens, None
        if what == "append":
            logits = session.append(value)
        elif what == "close":
            work = session.prefill(value)
            next(work, None)
            work.close()
        else:
            tokens = [*before[:value], 9] if what == "edit" else value
            model.fails_next = what == "fail"
            try:
                logits = finish(session.prefill(tokens))
                assert session.tokens == tuple(tokens)
                assert session.kept + session.computed == len(tokens)
                if can_crop:
                    assert session.computed == max(1, len(tokens) - common_prefix(before, tokens))
            except MemoryError:
                assert session.tokens == ()
        assert session._cache == list(session.tokens)
        if logits is not None:
            np.testing.assert_array_equal(logits, logits_after(session.tokens))
