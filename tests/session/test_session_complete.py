"""A whole turn in one go."""

from __future__ import annotations

import pytest
from session.conversing import (
    SNAPSHOT,
    ask,
    assert_true_to_its_history,
    begun,
    chunks_of,
    finish,
    refusal,
    request,
    said,
    state,
)
from session.fake_model import tokenize

from dora_voice_session.cached_tokens import SLICE_TOKENS
from dora_voice_session.schema import ChatMessage, Generation, SessionSettings, StreamingRequest
from dora_voice_session.work import run


def test_a_whole_turn_in_one_go():
    session = begun("Hello.")
    response = run(session.complete_turn(request("Hi.")))
    assert (response.full_text, response.finish_reason, response.session_id) == ("Hello.", "end", "s")
    assert response.total_chunks == 7
    assert_true_to_its_history(session)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (request("x" * 9000), "context_full: "),
        (request("x", enable_thinking=True), "unsupported_field: enable_thinking=True"),
        (request("x", role="assistant"), "nothing_to_answer: "),
        (request("x", role="system"), "bad_request: role=system"),
        (request("x" * 100, generation=Generation(max_new_tokens=8192 - 110)), "context_full: "),
        # It fits, until it is closed.
        (request("x" * 92, generation=Generation(max_new_tokens=8192 - 110)), "context_full: "),
    ],
)
def test_a_turn_in_one_go_that_is_refused_changes_nothing(bad, error):
    session = begun("Hello.", settings=SessionSettings(system_prompt="Be brief."))
    run(session.complete_turn(request("Hi.", generation=Generation(max_new_tokens=77))))
    before = state(session)
    response = run(session.complete_turn(bad))
    assert not response.success
    assert response.error.startswith(error)
    assert response.full_text == ""
    assert response.finish_reason is None
    assert state(session) == before
    assert_true_to_its_history(session)
    assert run(session.complete_turn(request("Ho."))).success


def test_a_whole_turn_counts_all_that_it_computes_and_comes_in_chunks():
    session = begun("one", "two")
    ask(session, "Hi.")
    chunks, response = chunks_of(session.complete(request("x" * 100), new_id=9))
    assert "".join(chunk.text_delta for chunk in chunks) == response.full_text == "two"
    assert response.usage.computed_tokens == len(tokenize(f"</s><s>u:{'x' * 100}</s><s>a:"))
    assert [turn.turn_id for turn in session.turns] == [0, 9]


def test_a_request_that_does_not_say_whether_it_is_the_last_piece_is_whole():
    session = begun("ok")
    hi = StreamingRequest(session_id="s", messages=[ChatMessage(role="user", content="Hi.")])
    assert finish(session.complete(hi)).full_text == "ok"


def test_a_piece_of_a_message_is_not_answered_at_once():
    session = begun("ok")
    piece = request("Hi", is_last_chunk=False)
    refused = refusal(session, session.complete(piece))
    assert refused.code == "bad_request"
    assert "is_last_chunk" in str(refused)
    assert run(session.complete_turn(piece)).error.startswith("bad_request: is_last_chunk")


def test_a_whole_turn_is_stopped_also_while_it_is_read():
    session, stop = begun("ok"), []
    work = session.complete(request("x" * 200), is_stopped=lambda: bool(stop))
    next(work)
    stop.append(True)
    response = finish(work)
    assert (response.full_text, response.finish_reason) == ("", "stopped")
    assert session.cache_length <= 2 * SLICE_TOKENS
    assert_true_to_its_history(session)


def test_a_refused_turn_leaves_the_snapshot_the_settings_and_what_is_computed():
    session = begun("one", context_tokens=900)
    finish(session.prefill(request("Hi.")))
    finish(session.generate(SNAPSHOT))
    assert refusal(session, session.complete(request("x" * 900, streaming=SNAPSHOT))).code == "context_full"
    assert session.rollback().success
    assert said(session) == ["u:Hi."]
    silent = begun("ok")
    assert refusal(silent, silent.complete(request("Be brief.", role="system"))).code == "nothing_to_answer"


def test_a_whole_turn_that_was_closed_while_it_was_read_goes_on_and_then_is_another_one():
    session = begun("one", "two")
    work = session.complete(request("x" * 100))
    next(work)
    work.close()
    assert finish(session.complete(request("x" * 100))).full_text == "one"
    assert session.usage.reused_tokens == SLICE_TOKENS
    finish(session.complete(request("x" * 100)))
    assert said(session) == ["u:" + "x" * 100, "a:one", "u:" + "x" * 100, "a:two"]
