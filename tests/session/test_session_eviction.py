"""A cache that was given up, or went elsewhere and comes back."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from session.conversing import (
    ask,
    assert_true_to_its_history,
    begun,
    computed,
    finish,
    greedy,
    request,
    text_of,
    until_first_token,
)
from session.fake_model import FakeModel, tokenize

from dora_voice_session.schema import Generation
from dora_voice_session.session import Session


@pytest.mark.parametrize("can_offload", [True, False])
def test_an_evicted_session_goes_on_as_if_nothing_had_happened(can_offload, caplog):
    caplog.set_level(logging.INFO, "dora_voice.session")
    session = begun("Hello the one.", "Bye.")
    session._model.can_offload = can_offload
    ask(session, "Hi.")
    held = session.tokens
    assert session.evict() == can_offload
    assert session.evict() == can_offload
    assert_true_to_its_history(session)
    finish(session.prefill(request("Ho.")))
    assert session.tokens[: len(held)] == held
    new = len(tokenize("</s><s>u:Ho."))
    expected = (len(held), new, 0) if can_offload else (0, len(held) + new, len(held))
    usage = session.usage
    assert (usage.reused_tokens, usage.computed_tokens, usage.replayed_tokens) == expected
    assert (f"replaying {len(held)} tokens" in caplog.text) == (not can_offload)
    assert_true_to_its_history(session)
    caplog.clear()
    finish(session.generate())
    assert session.usage.replayed_tokens == 0
    assert "replaying" not in caplog.text


def test_a_last_token_that_is_computed_again_for_its_logits_is_no_replay():
    session = begun("one", "two")
    ask(session, "Hi.")
    ask(session, "Ho.")
    session.drop()
    finish(session.compute())
    assert (session.usage.computed_tokens, session.usage.replayed_tokens) == (1, 0)


def test_a_reply_is_cut_while_the_cache_is_away():
    session = begun("The sea is wide.", "Bye.")
    session._model.can_offload = True
    ask(session, "Hi.")
    session.evict()
    session.heard(7)
    assert_true_to_its_history(session)
    assert computed(session, "Ho.")[0] == len(tokenize("</s><s>u:Ho."))
    assert text_of(session).startswith("<s>u:Hi.</s><s>a:The sea</s><s>u:Ho.")


def test_a_cache_that_comes_back_with_nothing_new_to_compute_answers_at_once():
    session = begun([], [])
    session._model.can_offload = True
    ask(session, "Hi.")
    finish(session.compute())
    session.evict()
    finish(session.compute())
    session.evict()
    assert ask(session, "Ho.").success
    assert_true_to_its_history(session)


def test_the_logits_that_a_reply_begins_with_are_those_of_a_fresh_start():
    model = FakeModel()
    session = Session("s", model, context_tokens=999)
    finish(session.prefill(request("Hi.")))
    work = session.generate(generation=Generation(max_new_tokens=5))
    tokens = tokenize("<s>u:Hi.</s><s>a:")
    assert list(until_first_token(session, work)) == tokens
    np.testing.assert_array_equal(session.logits, model.extend(model.new_cache(), tokens))
    assert finish(work).full_text == model.decode(greedy(model, tokens, 5)).rstrip("\ufffd") != ""
