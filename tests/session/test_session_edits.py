"""A past that is changed: dropped turns, edited histories, forks, settings, better guesses."""

from __future__ import annotations

import pytest
from session.conversing import (
    CROPS,
    SNAPSHOT,
    ask,
    assert_true_to_its_history,
    begun,
    computed,
    finish,
    refusal,
    request,
    said,
    state,
    text_of,
)
from session.fake_model import plain_template, spell, tokenize

from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import ChatMessage, Generation, SessionSettings


@CROPS
def test_a_turn_in_the_middle_that_never_happened(can_crop):
    session = begun("one", "two", "three", can_crop=can_crop)
    for text in ("Hi.", "Ho.", "Hey."):
        ask(session, text)
    assert session.drop(1)
    assert said(session) == ["u:Hi.", "a:one", "u:Hey.", "a:three"]
    assert_true_to_its_history(session)
    assert not session.drop(1)


def test_the_only_turn_that_never_happened_leaves_nothing():
    session = begun("one")
    ask(session, "Hi.")
    assert session.drop()
    assert session.tokens == ()
    assert not session.drop()
    assert finish(session.prefill(request("Ho."))).usage.computed_tokens == len(tokenize("<s>u:Ho."))


def test_a_replaced_history_keeps_what_is_the_same_at_the_beginning():
    session = begun("one", "two")
    ask(session, "Hi.")
    ask(session, "Ho.")
    edited = [("user", "Hi."), ("assistant", "one"), ("user", "Hey.")]
    session.edit([ChatMessage(role=role, content=text) for role, text in edited])
    assert text_of(session) == "<s>u:Hi.</s><s>a:one</s><s>u:H"
    finish(session.compute())
    assert text_of(session) == "<s>u:Hi.</s><s>a:one</s><s>u:Hey."
    assert session.usage.computed_tokens == 3
    assert_true_to_its_history(session)


@pytest.mark.parametrize(
    ("code", "bad"),
    [
        ("bad_request", [("user", "a"), ("system", "b")]),
        ("bad_request", [("system", "bad"), ("user", "a")]),
        ("context_full", [("system", "x" * 9000), ("user", "a")]),
    ],
)
def test_a_history_that_is_replaced_in_a_refused_way_stays_as_it_was(code, bad):
    def refuses(messages, **switches):
        if "bad" in messages[0]["content"]:
            raise ValueError("bad word")
        return plain_template(messages, **switches)

    session = begun("one", template=refuses)
    finish(session.prefill(request("Hi.")))
    finish(session.generate(SNAPSHOT))
    messages = [ChatMessage(role=role, content=text) for role, text in bad]
    replaced = request("x").model_copy(update={"messages": messages})
    assert refusal(session, session.prefill(replaced, replace=True)).code == code
    if code != "context_full":
        before, held = state(session), session.tokens
        with pytest.raises(RefusedError):
            session.edit(messages)
        assert (state(session), session.tokens) == (before, held)
    assert session.rollback().success


def test_a_replaced_history_may_come_with_a_request():
    session = begun("one", "two")
    ask(session, "Hi.")
    ask(session, "Ho.")
    messages = [
        ChatMessage(role="user", content="Hi."),
        ChatMessage(role="assistant", content="one"),
        ChatMessage(role="user", content="Hey."),
    ]
    usage = finish(session.prefill(request("x").model_copy(update={"messages": messages}), replace=True)).usage
    assert text_of(session) == "<s>u:Hi.</s><s>a:one</s><s>u:Hey."
    assert usage.computed_tokens == 3
    assert not session.rollback().success


def test_a_reset_keeps_the_settings_and_nothing_else():
    session = begun("one", settings=SessionSettings(system_prompt="Be brief."))
    ask(session, "Hi.")
    session.reset()
    assert session.tokens == ()
    assert said(session) == []
    finish(session.prefill(request("Hi.")))
    assert text_of(session) == "<s>s:Be brief.</s><s>u:Hi."


@CROPS
def test_forks_go_their_own_ways_from_the_same_past(can_crop):
    session = begun("one", "two", can_crop=can_crop)
    ask(session, "Hi.")
    fork = session.fork("t")
    assert fork.session_id == "t"
    assert fork.tokens == session.tokens
    ask(session, "Ho.")
    assert computed(fork, "Hey.") == (len(tokenize("</s><s>u:Hey.")), len(tokenize("</s><s>a:")))
    fork.heard(0)
    assert said(session) == ["u:Hi.", "a:one", "u:Ho.", "a:two"]
    assert said(fork) == ["u:Hi.", "a:one", "u:Hey."]
    assert_true_to_its_history(session)
    assert_true_to_its_history(fork)


def test_a_fork_of_a_message_that_was_half_read_goes_on_like_the_original():
    session = begun("one")
    work = session.prefill(request("x" * 100))
    next(work)
    work.close()
    fork = session.fork("t")
    for each in (session, fork):
        finish(each.prefill(request("x" * 100)))
        assert said(each) == ["u:" + "x" * 100]


def test_settings_that_change_change_the_history_they_are_part_of():
    session = begun("one")
    finish(
        session.prefill(
            request("Be brief.", "Hi.").model_copy(
                update={
                    "messages": [
                        ChatMessage(role="system", content="Be brief."),
                        ChatMessage(role="user", content="Hi."),
                    ]
                }
            )
        )
    )
    session.configure(SessionSettings(language="de"))
    assert_true_to_its_history(session)
    assert said(session) == ["u:Hi."]
    assert spell(session.history_tokens) == '<s>s:Be brief. Answer in the language "de".</s><s>u:Hi.'


def test_settings_that_are_null_stay_as_they_were():
    generation = Generation(max_new_tokens=5)
    session = begun("one", settings=SessionSettings(system_prompt="Be brief.", generation=generation))
    session.configure(SessionSettings(language="de"))
    assert session.settings == SessionSettings(system_prompt="Be brief.", language="de", generation=generation)
    session.configure(SessionSettings(system_prompt="", generation=Generation(top_k=3)))
    merged = Generation(max_new_tokens=5, top_k=3)
    assert session.settings == SessionSettings(system_prompt="", language="de", generation=merged)


def test_settings_that_cannot_be_honoured_are_refused_and_change_nothing():
    session = begun("one")
    before = state(session)
    with pytest.raises(RefusedError, match="voice='anna'"):
        session.configure(SessionSettings(voice="anna", language="de"))
    assert state(session) == before


def test_of_a_better_guess_only_what_differs_is_computed():
    session = begun("one")
    for guess in ("How is the see", "How is the sea?", "How is the sea today?"):
        assert session.revise([ChatMessage(role="user", content=guess)], 0, is_open=True)
        assert_true_to_its_history(session)
        finish(session.compute())
        assert text_of(session) == f"<s>u:{guess}"
    assert session.usage.computed_tokens == len(tokenize(" today?"))
    finish(session.generate())
    assert not session.revise([ChatMessage(role="user", content="Who?")], 0)
    assert said(session) == ["u:How is the sea today?", "a:one"]


@pytest.mark.parametrize("is_last_chunk", [True, False])
def test_the_last_message_of_a_replaced_history_may_go_on(is_last_chunk):
    session = begun("one")
    ask(session, "Hi.")
    finish(session.prefill(request("Who", is_last_chunk=is_last_chunk), replace=True))
    finish(session.prefill(request("ever?")))
    assert said(session) == ["u:Who ever?" if is_last_chunk else "u:Whoever?"]
