"""What is refused changes nothing."""

from __future__ import annotations

import pytest
from session.conversing import ask, begun, computed, finish, refusal, request, state
from session.fake_model import plain_template, tokenize

from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import ChatMessage, Generation, SessionSettings, StreamingConfig


@pytest.mark.parametrize("roles", [("user", "system"), ("system", "system"), ("assistant", "system")])
def test_a_system_message_in_the_middle_is_refused(roles):
    session = begun("ok", settings=SessionSettings(system_prompt="Be brief."))
    messages = [ChatMessage(role=role, content="x") for role in roles]
    refused = refusal(session, session.prefill(request("x").model_copy(update={"messages": messages})))
    assert refused.code == "bad_request"
    assert "role=system" in str(refused)
    ask(session, "Hi.")
    refusal(session, session.prefill(request("x", role="system")))


def test_what_the_template_refuses_is_refused_and_changes_nothing():
    def refuses(messages, **switches):
        if "bad" in messages[-1]["content"]:
            raise ValueError("bad word")
        return plain_template(messages, **switches)

    session = begun("ok", "Go on.", template=refuses)
    ask(session, "Hi.")
    assert "bad word" in str(refusal(session, session.prefill(request("a bad one", is_last_chunk=False))))
    assert computed(session, "Ho.") == (len(tokenize("</s><s>u:Ho.")), len(tokenize("</s><s>a:")))


def test_what_the_model_cannot_do_is_refused_before_anything_happens():
    session = begun("ok")
    finish(session.prefill(request("Hi.", is_last_chunk=False)))
    for work in (
        session.prefill(request("Ho.", enable_thinking=True)),
        session.prefill(request("Ho.", streaming=StreamingConfig(generate_audio=True))),
        session.generate(StreamingConfig(tts_sampling={"speed": 1.0})),
    ):
        assert refusal(session, work).code == "unsupported_field"
    assert finish(session.generate()).full_text == "ok"


def test_there_is_nothing_to_answer_before_a_message_and_after_a_reply():
    session = begun("ok", settings=SessionSettings(system_prompt="Be brief."))
    assert refusal(session, session.generate()).code == "nothing_to_answer"
    ask(session, "Hi.")
    assert refusal(session, session.generate()).code == "nothing_to_answer"
    assert refusal(session, session.generate(turn_id=7)).code == "nothing_to_answer"
    finish(session.prefill(request("I say.", role="assistant")))
    assert refusal(session, session.generate()).code == "nothing_to_answer"


def test_settings_that_leave_no_room_for_a_message_are_refused_and_change_nothing():
    session = begun("one two", context_tokens=60)
    before = state(session)
    with pytest.raises(RefusedError, match="max_new_tokens=50 leaves 10"):
        session.configure(SessionSettings(generation=Generation(max_new_tokens=50)))
    assert state(session) == before
