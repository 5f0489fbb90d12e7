"""A context that is full."""

from __future__ import annotations

import logging

import pytest
from session.conversing import ask, assert_true_to_its_history, begun, finish, refusal, request, said, text_of
from session.fake_model import tokenize

from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import ChatMessage, Generation, SessionSettings


def test_the_oldest_turns_are_given_up_in_a_block_and_the_system_prompt_and_the_newest_stay(caplog):
    caplog.set_level(logging.INFO, "dora_voice.session")
    settings = SessionSettings(system_prompt="Be brief.", generation=Generation(max_new_tokens=50))
    session = begun("y" * 20, context_tokens=350, settings=settings)
    dropped = []
    for i in range(20):
        finish(session.prefill(request(f"{i:02}" + "x" * 20)))
        dropped.append(session.usage.dropped_turns)
        response = finish(session.generate())
        dropped[-1] += response.usage.dropped_turns
        assert response.success
        assert len(session.tokens) <= 350
        assert text_of(session).startswith("<s>s:Be brief.</s><s>u:")
        assert said(session)[-2].startswith(f"u:{i:02}")
        assert_true_to_its_history(session)
    assert sum(dropped) == 20 - len(session.turns)
    # In blocks: not one with every turn.
    assert 0 < sum(map(bool, dropped)) <= 6
    assert f"session=s: context full, gave up the oldest {max(dropped)} turns" in caplog.text


def test_a_context_that_just_fits_loses_nothing_and_one_token_more_does():
    def second(length):
        session = begun("ok", context_tokens=100, settings=SessionSettings(generation=Generation(max_new_tokens=10)))
        ask(session, "x" * 30)
        response = ask(session, "y" * length)
        return response.usage.input_tokens, session.usage.dropped_turns, len(session.turns)

    # 90 are left for what comes before the reply.
    rest = 90 - len(tokenize("<s>u:" + "x" * 30 + "</s><s>a:ok</s><s>u:</s><s>a:"))
    assert second(rest) == (90, 0, 2)
    assert second(rest + 1)[1:] == (1, 1)


@pytest.mark.parametrize("role", ["user", "system"])
def test_a_message_that_cannot_fit_is_refused_with_numbers(role):
    session = begun("ok", context_tokens=300, settings=SessionSettings(generation=Generation(max_new_tokens=100)))
    if role == "user":
        ask(session, "Hi.")
    refused = refusal(session, session.prefill(request("x" * 500, role=role)))
    assert refused.code == "context_full"
    assert f"{500 + len(tokenize('<s>u:'))} tokens" in str(refused)
    assert "300" in str(refused)
    assert "max_new_tokens=100" in str(refused)
    assert ask(session, "Ho.").success


def test_a_message_that_fits_but_leaves_no_room_for_the_reply_that_is_asked_for_is_refused():
    session = begun("ok", context_tokens=300, settings=SessionSettings(generation=Generation(max_new_tokens=10)))
    ask(session, "Hi.")
    finish(session.prefill(request("x" * 200)))
    refused = refusal(session, session.generate(generation=Generation(max_new_tokens=200)))
    assert refused.code == "context_full"
    assert finish(session.generate()).full_text == "ok"


def short():
    """Two turns, and little room for a third."""
    settings = SessionSettings(generation=Generation(max_new_tokens=10))
    session = begun("ok", "ok", "ok", context_tokens=100, settings=settings)
    ask(session, "x" * 20)
    ask(session, "y" * 20)
    return session


def test_what_made_way_for_a_turn_is_there_again_when_that_never_happened():
    session = short()
    before = said(session)
    ask(session, "z" * 40)
    assert said(session) == ["u:" + "z" * 40, "a:ok"]
    assert session.drop()
    assert said(session) == before
    assert_true_to_its_history(session)


def test_what_made_way_for_several_turns_comes_back_for_the_last_only():
    session = short()
    ask(session, "z" * 40)
    ask(session, "Z" * 50)
    assert session.drop(2)
    assert said(session) == ["u:" + "Z" * 50, "a:ok"]
    assert session.drop()
    assert said(session) == [], "not even what never happened comes back"


def test_what_keeps_all_is_refused_where_something_would_have_to_make_way():
    session = short()
    session.add([ChatMessage(role="user", content="z" * 40)], is_open=True)
    assert refusal(session, session.compute(keeps_all=True)).code == "context_full"
    session.drop()
    session.add([ChatMessage(role="user", content="z")], is_open=True)
    finish(session.compute(keeps_all=True))
    assert len(session.turns) == 3


def test_what_was_only_said_can_be_made_to_fit_without_computing():
    session = short()
    session.add([ChatMessage(role="user", content="z" * 40)])
    assert session.fit() == 2
    assert said(session) == ["u:" + "z" * 40]
    assert session.fit() == 0
    session.add([ChatMessage(role="user", content="z" * 200)])
    with pytest.raises(RefusedError):
        session.fit()


def test_a_long_history_is_made_to_fit_with_few_renderings():
    session = begun("ok", context_tokens=1500, settings=SessionSettings(generation=Generation(max_new_tokens=10)))
    for i in range(38):
        session.add(
            [ChatMessage(role="user", content="x" * 30), ChatMessage(role="assistant", content="ok")], turn_id=i
        )
    session.add([ChatMessage(role="user", content="And?")])
    before = session._model.calls["render"]
    work = session.generate()
    next(work)
    assert 0 < len(session.turns) < 20
    assert session._model.calls["render"] - before <= 10
