"""Small transformers models from a folder: loaded, cropped, replayed, and equal to a fresh start in fp32."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session.tiny_model import make_tiny_model

from dora_voice_session.hf_model import HfModel, load
from dora_voice_session.session import Session, common_prefix


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return load(str(make_tiny_model(tmp_path_factory.mktemp("full"))), "fp32", threads=1)


@pytest.fixture(scope="module")
def sliding(tmp_path_factory):
    return load(str(make_tiny_model(tmp_path_factory.mktemp("sliding"), sliding_window=8)), "fp32", threads=1)


def prefill(session, tokens):
    work = session.prefill(tokens)
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value


def fresh(model: HfModel, tokens):
    """One forward pass over everything."""
    return model.extend(model.new_cache(), tokens)


TOKENS = st.lists(st.integers(2, 20), min_size=1, max_size=70)
STEPS = st.lists(st.tuples(TOKENS, st.integers(0, 70), st.integers(0, 3)), min_size=1, max_size=5)


@settings(max_examples=25)
@given(STEPS)
def test_after_any_edits_the_logits_are_those_of_a_fresh_prefill(full, steps):
    session = Session(full)
    for new, kept, appended in steps:
        before = session.tokens
        tokens = [*before[:kept], *new]
        logits = prefill(session, tokens)
        assert session.computed == max(1, len(tokens) - common_prefix(before, tokens))
        for _ in range(appended):
            logits = session.append(int(logits.argmax()))
        assert session.cache_length == len(session.tokens)
        np.testing.assert_allclose(logits, fresh(full, session.tokens), atol=1e-4)


@settings(max_examples=15)
@given(STEPS)
def test_a_sliding_window_is_replayed_and_never_silently_wrong(sliding, steps):
    session = Session(sliding)
    for new, kept, _ in steps:
        logits = prefill(session, [*session.tokens[:kept], *new])
        assert session.cache_length == len(session.tokens)
        np.testing.assert_allclose(logits, fresh(sliding, session.tokens), atol=1e-4)


def test_what_is_loaded_knows_its_text_side(full):
    rendering = full.render([{"role": "user", "content": "Hi."}])
    assert rendering == "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n"
    tokens = full.tokenize(rendering)
    assert tokens[0] == 0
    assert full.decode(tokens) == "user\nHi.\nassistant\n"
    assert full.end_tokens == {1}
    assert full.special_texts == ("<|im_start|>", "<|im_end|>")
    assert full.most_positions == 4096


def test_bf16_is_a_setting(full, tmp_path):
    rounded = load(str(make_tiny_model(tmp_path)), "bf16", threads=1)
    exact, near = fresh(full, [5, 6, 7]), fresh(rounded, [5, 6, 7])
    assert near.dtype == np.float32
    assert not np.array_equal(exact, near)
    np.testing.assert_allclose(exact, near, atol=0.5)


def test_a_model_that_cannot_chat_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no chat template"):
        load(str(make_tiny_model(tmp_path, chat_template=None)), "fp32", threads=1)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises((OSError, ValueError)):
        load(str(tmp_path), "fp32", threads=1)
