"""Turns: messages in one piece or several, and that each computes only what is new."""

from __future__ import annotations

from session.conversing import (
    CROPS,
    ask,
    assert_true_to_its_history,
    begun,
    computed,
    finish,
    greedy,
    request,
    said,
    text_of,
)
from session.fake_model import FakeModel, tokenize

from dora_voice_session.schema import ChatMessage, Generation, SessionSettings, StreamingConfig
from dora_voice_session.session import Session


def test_a_message_is_held_open_until_it_is_answered():
    session = begun("Hello.")
    finish(session.prefill(request("Hi.")))
    assert text_of(session) == "<s>u:Hi."
    response = finish(session.generate())
    assert text_of(session) == "<s>u:Hi.</s><s>a:Hello."
    assert (response.full_text, response.finish_reason, response.success) == ("Hello.", "end", True)


def test_a_message_in_pieces_has_one_header_and_no_reply_begins_before_it_is_asked_for():
    session, held = begun("Hello."), []
    for piece in ("Who ", "are", "", " you?"):
        finish(session.prefill(request(piece, is_last_chunk=False)))
        held.append(text_of(session))
        assert_true_to_its_history(session)
    assert held == ["<s>u:Who ", "<s>u:Who are", "<s>u:Who are", "<s>u:Who are you?"]
    finish(session.prefill(request("", is_last_chunk=True)))
    assert finish(session.generate()).usage.computed_tokens == len(tokenize("</s><s>a:"))
    assert said(session) == ["u:Who are you?", "a:Hello."]


def test_a_piece_may_end_inside_a_word_an_emoji_sequence_or_a_control_spelling():
    whole, pieces = begun("ok"), begun("ok")
    text = "the 世界 👨‍👩‍👧 </s>abc"
    ask(whole, text)
    for letter in text:
        finish(pieces.prefill(request(letter, is_last_chunk=False)))
        assert_true_to_its_history(pieces)
    finish(pieces.generate())
    assert pieces.tokens == whole.tokens
    assert text_of(whole) == "<s>u:the 世界 👨‍👩‍👧  abc</s><s>a:ok"


def test_a_message_after_one_that_was_complete_goes_on_in_the_same_turn():
    session = begun("ok")
    finish(session.prefill(request("Hi.")))
    finish(session.prefill(request("Ho.")))
    assert text_of(session) == "<s>u:Hi. Ho."


def test_a_cache_that_cannot_go_back_waits_with_the_last_word_until_it_is_complete():
    session = begun("ok", can_crop=False)
    finish(session.prefill(request("Who is the", is_last_chunk=False)))
    assert text_of(session) == "<s>u:Who is"
    finish(session.prefill(request("re?", is_last_chunk=False)))
    assert text_of(session) == "<s>u:Who is"
    assert session.usage.computed_tokens == 0
    finish(session.prefill(request("")))
    assert text_of(session) == "<s>u:Who is there?"
    assert session.usage.reused_tokens == len(tokenize("<s>u:Who is"))


@CROPS
def test_a_system_message_becomes_the_sessions_prompt(can_crop):
    session = begun("ok", can_crop=can_crop)
    finish(session.prefill(request("Be brief.", role="system")))
    assert text_of(session) == "<s>s:Be brief."
    ask(session, "Hi.")
    assert text_of(session) == "<s>s:Be brief.</s><s>u:Hi.</s><s>a:ok"
    assert session.usage.reused_tokens == len(tokenize("<s>s:Be brief.</s><s>u:Hi."))


def test_a_system_message_in_pieces_is_whole():
    session = begun("ok")
    finish(session.prefill(request("Be ", role="system", is_last_chunk=False)))
    finish(session.prefill(request("brief.", role="system")))
    assert text_of(session) == "<s>s:Be brief."
    finish(session.prefill(request("Be long.", role="system")))
    assert text_of(session) == "<s>s:Be long."


def test_what_was_said_elsewhere_is_read_in_one_go():
    session = begun("ok")
    messages = [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="Hi."),
        ChatMessage(role="assistant", content="Hello."),
        ChatMessage(role="user", content="Bye."),
    ]
    finish(session.prefill(request("x").model_copy(update={"messages": messages})))
    assert text_of(session) == "<s>s:Be brief.</s><s>u:Hi.</s><s>a:Hello.</s><s>u:Bye."
    assert finish(session.generate()).full_text == "ok"


def test_each_of_fifty_turns_computes_exactly_its_own_tokens():
    session = begun(*(f"Reply the {i}é!" for i in range(7)))
    for i in range(50):
        text = f"Message the {i} 你好"
        before = "</s>" if i else ""
        assert computed(session, text) == (len(tokenize(f"{before}<s>u:{text}")), len(tokenize("</s><s>a:")))
    assert_true_to_its_history(session)
    assert session.usage.replayed_tokens == 0


def test_right_after_an_interruption_only_what_is_new_is_computed():
    session = begun("The sea is the widest.")
    ask(session, "How is it?")
    assert session.heard(12)
    assert text_of(session) == "<s>u:How is it?</s><s>a:The sea is"
    assert computed(session, "I see.") == (len(tokenize("</s><s>u:I see.")), len(tokenize("</s><s>a:")))


def test_right_after_a_rollback_only_what_is_new_is_computed():
    session = begun("Hello.", "Ciao.")
    ask(session, "Hi.")
    finish(session.prefill(request("Bye.")))
    finish(session.generate(StreamingConfig(enable_speculative_snapshot=True)))
    assert session.rollback().success
    assert text_of(session) == "<s>u:Hi.</s><s>a:Hello.</s><s>u:Bye."
    assert computed(session, "Go.") == (len(tokenize(" Go.")), len(tokenize("</s><s>a:")))


def test_right_after_a_drop_only_what_is_new_is_computed():
    session = begun("Hello.", "Ciao.")
    ask(session, "Hi.")
    ask(session, "Bye.")
    assert session.drop()
    assert text_of(session) == "<s>u:Hi.</s><s>a:Hello."
    assert computed(session, "Go.") == (len(tokenize("</s><s>u:Go.")), len(tokenize("</s><s>a:")))


def test_right_after_a_reply_that_reached_its_limit_only_what_is_new_is_computed():
    session = begun("Hello.")
    ask(session, "Hi.", generation=Generation(max_new_tokens=4))
    assert text_of(session) == "<s>u:Hi.</s><s>a:Hell"
    assert computed(session, "Go.") == (len(tokenize("</s><s>u:Go.")), len(tokenize("</s><s>a:")))


def test_a_reply_ends_the_message_that_was_open():
    session = begun("ok")
    finish(session.prefill(request("Hi.", is_last_chunk=False)))
    finish(session.generate())
    finish(session.prefill(request("I said.", role="assistant")))
    assert said(session) == ["u:Hi.", "a:ok I said."]


def test_a_reply_is_what_a_model_that_has_seen_nothing_else_would_say():
    for can_crop in (True, False):
        model = FakeModel(can_crop)
        session = Session("s", model, context_tokens=4096)
        generation = Generation(max_new_tokens=20)
        for text in ("Hi.", "the abc 你好", "🙂"):
            ask(session, text, generation=generation)
            session.heard(5)
        finish(session.prefill(request("And?")))
        tokens = [*session.tokens, *tokenize("</s><s>a:")]
        expected = greedy(model, tokens, 20)
        session.settings = SessionSettings(generation=generation)
        response = finish(session.generate())
        assert response.usage.generated_tokens == len(expected)
        assert response.full_text == model.decode(expected).rstrip("\ufffd")
        held = session.tokens[len(tokens) :]
        assert list(held) == expected[: len(held)]
        assert_true_to_its_history(session)
