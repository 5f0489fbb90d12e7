"""Chat templates of all kinds."""

from __future__ import annotations

import re

import pytest
from session.conversing import (
    CROPS,
    ask,
    assert_true_to_its_history,
    begun,
    finish,
    request,
    said,
    text_of,
    until_first_token,
)
from session.fake_model import plain_template, spell, tokenize

from dora_voice_session.schema import SessionSettings


def strips(messages, **switches):
    return plain_template([{**message, "content": message["content"].strip()} for message in messages], **switches)


def forgets_thoughts(messages, **switches):
    """Of every reply but the last, and marks the beginning of the next one, as Qwen3 does without thinking."""
    last = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    plain = [
        {**message, "content": re.sub(r"<think>.*?</think>", "", message["content"])} if i < last else message
        for i, message in enumerate(messages)
    ]
    return plain_template(plain, **switches)


def speaks_first(messages, **switches):
    if messages[0]["role"] != "system":
        messages = [{"role": "system", "content": "You are helpful."}, *messages]
    return plain_template(messages, **switches)


def needs_a_user(messages, **switches):
    if not any(message["role"] == "user" for message in messages):
        raise ValueError("no user query found")
    return plain_template(messages, **switches)


def needs_the_user_last(messages, **switches):
    if messages[-1]["role"] == "assistant":
        raise ValueError("the user has the last word")
    return plain_template(messages, **switches)


@pytest.mark.parametrize("template", [strips, forgets_thoughts, speaks_first, needs_a_user, needs_the_user_last])
@CROPS
def test_with_any_template_the_history_is_rendered_as_it_would_be_at_once(template, can_crop):
    replies = ("<think>hm</think>Hello the one. ", "  two", "three\n")
    session = begun(*replies, can_crop=can_crop, template=template, settings=SessionSettings(system_prompt="Be."))
    for i in range(6):
        text = f" Message the {i} "
        for piece in (text[:5], text[5:]):
            finish(session.prefill(request(piece, is_last_chunk=False)))
        expected = template(
            [{"role": "system", "content": "Be."}, *session.turns.messages()], add_generation_prompt=True
        )
        work = session.generate()
        assert spell(until_first_token(session, work)) == expected
        usage = finish(work).usage
        assert usage.input_tokens == usage.reused_tokens + usage.computed_tokens
        if i == 2:
            session.heard(2)
        if i == 3:
            session.drop()
    if template is not needs_the_user_last:
        assert_true_to_its_history(session)


def test_thoughts_of_earlier_replies_are_not_computed_again_with_what_follows_them():
    session = begun("<think>hm</think>Hello.", "Bye.", template=forgets_thoughts)
    ask(session, "Hi.")
    assert text_of(session) == "<s>u:Hi.</s><s>a:<think>hm</think>Hello."
    finish(session.prefill(request("Ho.")))
    assert text_of(session) == "<s>u:Hi.</s><s>a:Hello.</s><s>u:Ho."
    assert session.usage.reused_tokens == len(tokenize("<s>u:Hi.</s><s>a:"))
    assert_true_to_its_history(session)


def test_a_template_that_refuses_an_empty_conversation_does_not_keep_a_turn_from_being_dropped():
    session = begun("one", template=needs_a_user, settings=SessionSettings(system_prompt="Be brief."))
    ask(session, "Hi.")
    assert session.drop()
    assert session.tokens == ()
    assert ask(session, "Ho.").success


def test_a_template_that_refuses_what_comes_of_a_reply_does_not_lose_the_reply():
    session = begun("one", "two", template=needs_the_user_last)
    assert ask(session, "Hi.").full_text == "one"
    assert ask(session, "Ho.").full_text == "two"
    assert said(session) == ["u:Hi.", "a:one", "u:Ho.", "a:two"]
