"""A model that fails."""

from __future__ import annotations

import pytest
from session.conversing import CROPS, SNAPSHOT, ask, assert_true_to_its_history, begun, finish, request, said

from dora_voice_session.refused import RefusedError

METHODS = ("extend", "crop", "fork", "render", "tokenize", "decode", "offload", "restore")


@pytest.mark.parametrize("method", METHODS)
@CROPS
def test_whatever_call_of_the_model_fails_the_session_stays_true_and_goes_on(method, can_crop):
    def model_does_all(session):
        try:
            conversation(session)
        except (MemoryError, RefusedError):
            return False
        return True

    def conversation(session):
        ask(session, "Hi.")
        session.heard(4)
        ask(session, "x" * 70)
        session.drop()
        finish(session.prefill(request("How are", is_last_chunk=False)))
        session.evict()
        finish(session.prefill(request(" you?")))
        finish(session.generate(SNAPSHOT))
        session.rollback()
        session.fork("t")
        ask(session, "Bye.")

    failing = 0
    while True:
        failing += 1
        session = begun("the one", "two", can_crop=can_crop)
        model = session._model
        model.can_offload = True
        model.fails_at = (method, failing)
        if model_does_all(session):
            break
        model.fails_at = None
        assert_true_to_its_history(session)
        session.drop()
        assert ask(session, "Again.").success
        assert_true_to_its_history(session)
        assert said(session)[-2].endswith("Again.")
    assert (failing > 1) == (method != "crop" or can_crop)


def test_a_model_that_fails_in_a_prefill_leaves_the_message_to_be_read_again():
    session = begun("ok")
    session._model.fails_at = ("extend", 2)
    with pytest.raises(MemoryError):
        finish(session.prefill(request("x" * 100)))
    assert session.tokens == ()
    finish(session.prefill(request("x" * 100)))
    assert said(session) == ["u:" + "x" * 100]
    assert finish(session.generate()).full_text == "ok"
