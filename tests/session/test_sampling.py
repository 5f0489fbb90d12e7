"""Which token comes next."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dora_voice_session.sampling import FEW, Sampler, candidates
from dora_voice_session.schema import Generation

LOGITS = np.array([0.0, 2.0, 1.9, -1.0, 1.0], np.float32)
END = 4


def sampler(**settings):
    return Sampler(Generation(**settings), {END})


def drawn(count=300, logits=LOGITS, **settings):
    """The tokens that were drawn so many times, without a reply so far."""
    settings = {"temperature": 1.0, "seed": 1, **settings}
    chooser = sampler(**settings)
    return [chooser.choose(logits, []) for _ in range(count)]


def test_the_likeliest_token_is_chosen_by_default():
    assert sampler().choose(LOGITS, [1, 1]) == 1


def test_the_logits_are_left_as_they_were():
    logits = LOGITS.copy()
    sampler(repetition_penalty=2.0, length_penalty=2.0).choose(logits, [1], may_end=False)
    np.testing.assert_array_equal(logits, LOGITS)


def test_a_token_that_the_reply_has_already_is_less_likely():
    assert sampler(repetition_penalty=1.1).choose(LOGITS, [1]) == 2
    assert sampler(repetition_penalty=1.1).choose(LOGITS, []) == 1


def test_a_penalty_makes_negative_logits_less_likely_too():
    logits = np.array([-1.0, -1.1, -9.0, -9.0, -9.0], np.float32)
    assert sampler(repetition_penalty=1.2).choose(logits, [0]) == 1


def test_a_token_is_penalised_once_however_often_it_came():
    assert sampler(repetition_penalty=1.04).choose(LOGITS, [1] * 50) == 1


def test_a_length_penalty_makes_the_end_less_likely():
    logits = np.array([0.0, 2.0, 0.0, 0.0, 2.1], np.float32)
    assert sampler().choose(logits, []) == END
    assert sampler(length_penalty=1.2).choose(logits, []) == 1
    assert sampler(length_penalty=0.9).choose(np.array([0.0, 2.2, 0.0, 0.0, 2.1], np.float32), []) == END


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_reply_that_may_not_end_goes_on(temperature):
    logits = np.array([0.0, 0.1, 0.0, 0.0, 99.0], np.float32)
    chooser = sampler(temperature=temperature, seed=1)
    assert END not in {chooser.choose(logits, [], may_end=False) for _ in range(50)}
    assert chooser.choose(logits, []) == END


def test_tokens_are_drawn_as_often_as_they_are_likely():
    counts = np.bincount(drawn(4000), minlength=5) / 4000
    expected = np.exp(LOGITS) / np.exp(LOGITS).sum()
    np.testing.assert_allclose(counts, expected, atol=0.03)


def test_a_high_temperature_evens_out_and_a_low_one_sharpens():
    assert len(set(drawn(temperature=10.0))) == 5
    assert set(drawn(temperature=0.01)) == {1}


def test_only_the_top_k_are_drawn():
    assert set(drawn(top_k=2, temperature=5.0)) == {1, 2}
    assert set(drawn(top_k=1, temperature=5.0)) == {1}
    assert set(drawn(top_k=99, temperature=5.0)) == set(range(5))


def test_only_the_likeliest_that_reach_top_p_together_are_drawn():
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    assert set(drawn(logits=np.append(logits, [-99, -99]), top_p=0.5)) == {0}
    assert set(drawn(logits=np.append(logits, [-99, -99]), top_p=0.51)) == {0, 1}
    assert set(drawn(logits=np.append(logits, [-99, -99]), top_p=0.81)) == {0, 1, 2}


def test_top_p_counts_among_what_top_k_leaves():
    logits = np.log(np.array([0.4, 0.3, 0.1, 0.1, 0.1], np.float32))
    assert set(drawn(logits=logits, top_k=2, top_p=0.55)) == {0}


def by_definition(logits, temperature, top_p, top_k):
    """All tokens sorted, likeliest first; top_k of them; of these as many as reach top_p. And their probabilities."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])[: top_k or None]
    weights = [np.exp((float(logits[token]) - float(logits[order[0]])) / temperature) for token in order]
    reached = np.cumsum(weights) / sum(weights)
    kept = next((i + 1 for i, share in enumerate(reached) if share >= top_p and top_p < 1), len(order))
    return dict(zip(order[:kept], np.array(weights[:kept]) / sum(weights[:kept]), strict=True)), reached


@st.composite
def vocabularies(draw):
    """Logits of few and of many tokens, with ties, some impossible."""
    size = draw(st.sampled_from([1, 2, 7, FEW, FEW + 1, 3 * FEW]))
    few = draw(st.lists(st.floats(-20, 20, width=32) | st.just(-np.inf), min_size=1, max_size=9))
    random = np.random.default_rng(draw(st.integers(0, 9)))
    logits = random.choice(np.array(few, np.float32), size)
    if draw(st.booleans()):
        logits += random.normal(size=size).astype(np.float32)
    logits[random.integers(size)] = 1.0  # Something is possible.
    return logits


@given(
    vocabularies(),
    st.floats(0.05, 10),
    st.just(1.0) | st.floats(0.01, 0.999),
    st.sampled_from([0, 1, 2, 5, 100, FEW, 2 * FEW, 10**6]),
)
def test_what_can_be_drawn_is_what_the_definition_says(logits, temperature, top_p, top_k):
    expected, reached = by_definition(logits, temperature, top_p, top_k)
    assume(top_p == 1 or np.abs(reached[:-1] - top_p).min(initial=1) > 1e-9)  # Else rounding decides.
    tokens, probabilities = candidates(logits, Generation(temperature=temperature, top_p=top_p, top_k=top_k))
    found = dict(zip(tokens.tolist(), probabilities, strict=True))
    assert len(found) == len(tokens)
    likely = {token for token, share in expected.items() if share}
    assert {token for token, share in found.items() if share} == likely
    np.testing.assert_allclose([found[token] for token in likely], [expected[token] for token in likely], rtol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"top_k": 40}, {"top_p": 0.9}, {"top_p": 0.999}, {"top_k": 9, "top_p": 0.5}])
def test_a_seed_repeats_in_a_large_vocabulary(settings):
    logits = np.random.default_rng(3).normal(size=20 * FEW).astype(np.float32)
    first, again = (drawn(50, logits, seed=7, **settings) for _ in range(2))
    assert first == again
    assert len(set(first)) > 1


def test_a_seed_repeats_and_no_seed_does_not():
    assert drawn(seed=7) == drawn(seed=7)
    assert drawn(seed=7) != drawn(seed=8)
    assert drawn(seed=None) != drawn(seed=None)


@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=5, max_size=5),
    st.floats(0, 10),
    st.floats(0, 1, exclude_min=True),
    st.integers(0, 7),
    st.lists(st.integers(0, 3), max_size=3),
)
def test_whatever_the_settings_some_token_is_chosen(logits, temperature, top_p, top_k, reply):
    chooser = sampler(temperature=temperature, top_p=top_p, top_k=top_k, repetition_penalty=1.3, length_penalty=0.5)
    logits = np.array(logits, np.float32)
    assert chooser.choose(logits, reply) in range(5)
    assert chooser.choose(logits, reply, may_end=False) in range(4)


def test_without_end_tokens_nothing_is_forbidden():
    assert Sampler(Generation(length_penalty=2.0), frozenset()).choose(LOGITS, [], may_end=False) == 1
