"""Snapshots, and what a rollback goes back to."""

from __future__ import annotations

import pytest
from session.conversing import (
    ABLE,
    CROPS,
    SNAPSHOT,
    ask,
    assert_true_to_its_history,
    begun,
    finish,
    refusal,
    request,
    said,
    state,
    text_of,
)
from session.fake_model import FIRST_BYTE, plain_template, spell, tokenize

from dora_voice_session.schema import ChatMessage, SessionSettings


@CROPS
def test_a_rollback_forgets_the_reply_and_what_came_after_it(can_crop):
    session = begun("one", "two", can_crop=can_crop)
    ask(session, "Hi.")
    finish(session.prefill(request("Ho.")))
    before, tokens = said(session), session.tokens
    finish(session.generate(SNAPSHOT))
    finish(session.prefill(request("Hey.", enable_thinking=False)))
    result = session.rollback()
    assert result.success
    assert result.restored_position == len(tokens)
    assert session.tokens == tokens
    assert said(session) == before
    assert_true_to_its_history(session)
    assert finish(session.generate()).full_text == "two"


@CROPS
def test_a_rollback_of_a_reply_that_was_cut_or_closed(can_crop):
    for is_closed in (True, False):
        session = begun("the one", can_crop=can_crop)
        finish(session.prefill(request("Ho.")))
        work = session.generate(SNAPSHOT)
        for _ in range(3):
            next(work)
        work.close() if is_closed else finish(work)
        session.heard(2)
        assert session.rollback().success
        assert said(session) == ["u:Ho."]
        assert_true_to_its_history(session)
        assert finish(session.generate()).full_text == "the one"


def unsnapped(session):
    ask(session, "Hi.")


def rolled_back(session):
    session.snapshot()
    assert session.rollback().success


def evicted(session):
    session.snapshot()
    session.evict()


def dropped(session):
    ask(session, "Hi.")
    session.snapshot()
    session.drop()


def edited(session):
    session.snapshot()
    session.edit([ChatMessage(role="user", content="Ho.")])


def reset(session):
    session.snapshot()
    session.reset()


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (unsnapped, "no snapshot"),
        (rolled_back, "already"),
        (evicted, "evicted"),
        (dropped, "dropped"),
        (edited, "edited"),
        (reset, "reset"),
    ],
)
@CROPS
def test_a_rollback_that_cannot_be_says_why_and_changes_nothing(before, reason, can_crop):
    session = begun("one", can_crop=can_crop)
    ask(session, "Hi.")
    before(session)
    was = state(session)
    for _ in range(2):
        result = session.rollback()
        assert not result.success
        assert reason in result.reason
        assert result.restored_position is None
        assert state(session) == was
    assert_true_to_its_history(session)


def test_a_later_snapshot_takes_the_place_of_an_earlier_one():
    session = begun("one", "two")
    finish(session.prefill(request("Hi.")))
    finish(session.generate(SNAPSHOT))
    finish(session.prefill(request("Ho.")))
    finish(session.generate(SNAPSHOT))
    assert session.rollback().success
    assert said(session) == ["u:Hi.", "a:one", "u:Ho."]
    assert not session.rollback().success


def test_a_generate_that_is_refused_leaves_the_snapshot_of_an_earlier_one():
    session = begun("one")
    finish(session.prefill(request("Hi.")))
    finish(session.generate(SNAPSHOT))
    refusal(session, session.generate(SNAPSHOT))
    assert session.rollback().success
    assert said(session) == ["u:Hi."]


def test_a_rollback_brings_the_tokens_back_as_the_model_had_spelled_them():
    spelled = [FIRST_BYTE + byte for byte in b" the abc"]
    session = begun(spelled, "two")
    ask(session, "Hi.")
    finish(session.prefill(request("Ho.")))
    tokens = session.tokens
    assert spelled != tokenize(" the abc")
    finish(session.generate(SNAPSHOT))
    session.configure(SessionSettings(system_prompt="Be kind."))
    ask(session, "Hey.")
    assert session.rollback().success
    assert tuple(session.history_tokens) == tokens


@CROPS
def test_what_was_not_heard_is_not_heard_after_a_rollback_either(can_crop):
    session = begun("one two", "three", "four", can_crop=can_crop)
    ask(session, "Hi.")
    finish(session.prefill(request("Ho.")))
    finish(session.generate(SNAPSHOT))
    assert session.heard(3, turn_id=0)
    assert session.rollback().success
    assert said(session) == ["u:Hi.", "a:one", "u:Ho."]
    assert_true_to_its_history(session)


def test_the_last_reply_that_was_cut_is_not_the_last_one_of_the_snapshot():
    session = begun("one two", "three four")
    ask(session, "Hi.")
    finish(session.prefill(request("Ho.")))
    finish(session.generate(SNAPSHOT))
    assert session.heard(0)
    assert session.rollback().success
    assert said(session) == ["u:Hi.", "a:one two", "u:Ho."]


def test_after_a_rollback_the_session_asks_for_what_it_asked_for_then():
    def thinks(messages, *, add_generation_prompt, enable_thinking=False):
        return ("<think>" if enable_thinking else "") + plain_template(
            messages, add_generation_prompt=add_generation_prompt
        )

    session = begun("one", template=thinks, capabilities=ABLE)
    finish(session.prefill(request("Hi.", enable_thinking=True)))
    finish(session.generate(SNAPSHOT))
    finish(session.prefill(request("Ho.")))
    result = session.rollback()
    assert spell(session.history_tokens) == "<think><s>u:Hi."
    assert result.restored_position == len(session.history_tokens)
    assert_true_to_its_history(session)


def test_a_rollback_restores_the_settings():
    session = begun("one", settings=SessionSettings(system_prompt="Be brief."))
    finish(session.prefill(request("Hi.")))
    finish(session.generate(SNAPSHOT))
    session.configure(SessionSettings(system_prompt="Be long.", language="de"))
    assert session.rollback().success
    assert session.settings == SessionSettings(system_prompt="Be brief.")
    assert text_of(session) == "<s>s:Be "
    finish(session.compute())
    assert text_of(session) == "<s>s:Be brief.</s><s>u:Hi."


def test_a_rollback_to_before_a_system_message_forgets_it():
    session = begun("one")
    session.snapshot()
    finish(session.prefill(request("Be brief.", role="system")))
    assert session.rollback().success
    assert session.settings == SessionSettings()
