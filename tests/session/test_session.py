"""A conversation: what was said is what the cache holds, whatever happens on the way."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest
from session.fake_model import (
    END,
    FIRST_BYTE,
    START,
    FakeModel,
    ask,
    assert_true_to_its_history,
    finish,
    greedy,
    plain_template,
    request,
    said,
    spell,
    tokenize,
)

from dora_voice_session.cached_tokens import SLICE_TOKENS
from dora_voice_session.capabilities import Capabilities
from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import ChatMessage, Generation, SessionSettings, StreamingConfig
from dora_voice_session.session import Session
from dora_voice_session.work import run

ABLE = Capabilities("able", honoured=frozenset({"enable_thinking"}))
CROPS = pytest.mark.parametrize("can_crop", [True, False])


def begun(*replies, can_crop=True, template=plain_template, context_tokens=8192, **session):
    model = FakeModel(can_crop, replies=replies, template=template)
    return Session("s", model, context_tokens=context_tokens, **session)


def text_of(session):
    """What the session holds, spelled out."""
    return spell(session.tokens)


def state(session):
    """Everything that a refusal may not change."""
    return (
        said(session),
        [(turn.turn_id, turn.reply, turn.is_open) for turn in session.turns],
        session.settings,
        session.generation,
        session.streaming,
        session.history_tokens,
    )


def refusal(session, work):
    """What `work`, which is refused and changes nothing, is refused with."""
    before, held = state(session), session.tokens
    with pytest.raises(RefusedError) as refused:
        finish(work)
    assert state(session) == before
    assert session.tokens == held
    assert_true_to_its_history(session)
    return refused.value


def computed(session, text):
    """How many tokens a turn takes: those of its prefill, and those from there to where the reply begins."""
    prefilled = finish(session.prefill(request(text))).usage.computed_tokens
    return prefilled, finish(session.generate()).usage.computed_tokens


# Turns


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
        assert session._prompt._tokens[-len(expected) :] == expected
        assert_true_to_its_history(session)


# Replies


def chunks_of(work):
    chunks = []
    while True:
        try:
            chunks.append(next(work))
        except StopIteration as done:
            return [chunk for chunk in chunks if chunk is not None], done.value


def test_chunks_are_counted_and_add_up_and_the_last_one_is_final():
    session = begun("né 🙂")
    finish(session.prefill(request("Hi.")))
    chunks, response = chunks_of(session.generate())
    assert [chunk.text_delta for chunk in chunks] == ["n", "é", " ", "🙂", ""]
    assert [chunk.chunk_index for chunk in chunks] == [0, 1, 2, 3, 4]
    assert [chunk.is_final for chunk in chunks] == [False] * 4 + [True]
    assert response.full_text == "né 🙂"
    assert response.total_chunks == 5
    assert response.usage.generated_tokens == 8
    assert response.usage.input_tokens == len(tokenize("<s>u:Hi.</s><s>a:"))


def test_time_is_told_from_one_chunk_to_the_next():
    times = iter(range(100))
    session = begun("ab", clock=lambda: next(times))
    finish(session.prefill(request("Hi.")))
    chunks, response = chunks_of(session.generate())
    assert [chunk.duration_ms for chunk in chunks] == [1000.0] * len(chunks)
    assert response.total_duration_ms > sum(chunk.duration_ms for chunk in chunks)


@pytest.mark.parametrize(
    ("settings", "text", "reason"),
    [
        ({}, "one two##three", "end"),
        ({"stop": ["##"]}, "one two", "stop"),
        ({"stop": ["#t", "two#"]}, "one ", "stop"),
        ({"max_new_tokens": 5}, "one t", "length"),
        ({"max_new_tokens": 8, "stop": ["##"]}, "one two#", "length"),
    ],
)
@CROPS
def test_why_a_reply_ended_and_what_is_left_of_it(settings, text, reason, can_crop):
    session = begun("one two##three", "ok", can_crop=can_crop)
    response = ask(session, "Hi.", generation=Generation(**settings))
    assert (response.full_text, response.finish_reason) == (text, reason)
    assert_true_to_its_history(session)
    assert said(session)[-1] == f"a:{text}"
    ask(session, "Go.")
    assert text_of(session) == f"<s>u:Hi.</s><s>a:{text}</s><s>u:Go.</s><s>a:ok"


def test_a_reply_torn_inside_a_character_keeps_only_whole_ones():
    session = begun("ok 🙂", "ok")
    response = ask(session, "Hi.", generation=Generation(max_new_tokens=5))
    assert response.full_text == "ok "
    assert text_of(session) == "<s>u:Hi.</s><s>a:ok "
    assert_true_to_its_history(session)
    ask(session, "Go.")
    assert text_of(session) == "<s>u:Hi.</s><s>a:ok </s><s>u:Go.</s><s>a:ok"


def test_a_control_token_in_a_dropped_reply_is_gone_with_it():
    session = begun([START, *tokenize("ok")], "ok")
    ask(session, "Hi.")
    assert session.drop()
    finish(session.prefill(request("Hi.")))
    finish(session.generate())
    assert session.usage.input_tokens == len(tokenize("<s>u:Hi.</s><s>a:"))


def test_a_reply_that_must_speak_does_not_end_before_its_first_word():
    session = begun([])
    finish(session.prefill(request("Hi.")))
    response = finish(session.generate(must_speak=True, generation=Generation(max_new_tokens=4)))
    assert (response.finish_reason, response.usage.generated_tokens) == ("length", 4)
    silent = begun([])
    assert ask(silent, "Hi.").usage.generated_tokens == 0


def test_a_reply_is_long_enough_when_the_caller_says_so():
    session = begun("One. Two. Three.")
    finish(session.prefill(request("Hi.")))
    seen = []
    work = session.generate(is_enough=lambda text, tokens: seen.append((text, tokens)) or text.endswith("Two."))
    response = finish(work)
    assert (response.full_text, response.finish_reason) == ("One. Two.", "length")
    assert seen[0] == ("", 0)
    assert seen[-1] == ("One. Two.", 9)
    assert_true_to_its_history(session)


def test_a_reply_ends_where_it_was_stopped():
    session, stop = begun("One. Two."), []
    finish(session.prefill(request("Hi.")))
    work = session.generate(is_stopped=lambda: bool(stop))
    deltas = [next(work).text_delta for _ in range(3)]
    stop.append(True)
    chunks, response = chunks_of(work)
    assert "".join(deltas) == response.full_text == "One"
    assert response.finish_reason == "stopped"
    assert chunks[-1].is_final
    assert_true_to_its_history(session)


def test_a_reply_that_is_stopped_before_its_first_token_says_nothing():
    session, stop = begun("ok"), []
    session.add([ChatMessage(role="user", content="x" * 100)])
    work = session.generate(is_stopped=lambda: bool(stop))
    next(work)
    stop.append(True)
    response = finish(work)
    assert (response.full_text, response.finish_reason, response.usage.generated_tokens) == ("", "stopped", 0)
    assert session.cache_length <= 2 * SLICE_TOKENS
    assert_true_to_its_history(session)
    assert refusal(session, session.generate()).code == "nothing_to_answer"


def test_the_settings_of_the_request_hold_before_those_of_the_session():
    session = begun("one two three", settings=SessionSettings(generation=Generation(max_new_tokens=3)))
    assert ask(session, "Hi.").full_text == "one"
    assert ask(session, "Hi.", generation=Generation(max_new_tokens=5)).full_text == "one t"
    assert ask(session, "Hi.").full_text == "one"
    finish(session.prefill(request("Hi.")))
    assert finish(session.generate(generation=Generation(max_new_tokens=1))).full_text == "o"


def test_a_reply_that_is_drawn_is_repeated_by_its_seed():
    drawn = [
        ask(Session("s", FakeModel(), context_tokens=999), "Hi.", generation=Generation(temperature=2.0, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert drawn[0].full_text == drawn[1].full_text != drawn[2].full_text


def test_an_older_turn_is_answered_where_it_is():
    session = begun("one", "two")
    session.add([ChatMessage(role="user", content="Hi.")], turn_id=3)
    session.add([ChatMessage(role="user", content="Ho.")], turn_id=4)
    assert finish(session.generate(turn_id=3)).full_text == "one"
    assert said(session) == ["u:Hi.", "a:one", "u:Ho."]
    assert_true_to_its_history(session)
    assert finish(session.generate(turn_id=4)).full_text == "two"


# What was heard


@pytest.mark.parametrize(
    ("reply", "text_end", "left"),
    [
        ("The sea is wide.", 0, None),
        ("The sea is wide.", 2, None),
        ("The sea is wide.", 3, "The"),
        ("The sea is wide.", 5, "The"),
        ("The sea is wide.", 16, "The sea is wide."),
        ("The sea is wide.", 99, "The sea is wide."),
        ("Go 🙂🙃 on.", 4, "Go 🙂"),
        ("Go 🙂🙃 on.", 7, "Go 🙂🙃"),
        ("你好。我在。", 3, "你好。"),
        ("你好。我在。", 4, "你好。我"),
        ("It’s the café!", 9, "It’s the"),
        ("  ", 1, None),
    ],
)
@CROPS
def test_a_reply_cut_to_what_was_heard_is_held_like_that_and_closed_by_the_next_turn(reply, text_end, left, can_crop):
    session = begun(reply, "ok", can_crop=can_crop)
    ask(session, "Hi.")
    assert session.heard(text_end)
    assert_true_to_its_history(session)
    if can_crop:
        assert text_of(session) == "<s>u:Hi." + (f"</s><s>a:{left}" if left else "")
    finish(session.prefill(request("Go.")))
    assert text_of(session) == (f"<s>u:Hi.</s><s>a:{left}</s><s>u:Go." if left else "<s>u:Hi. Go.")


def test_what_was_heard_never_grows_again():
    session = begun("The sea is wide.")
    ask(session, "Hi.")
    for text_end in (11, 7, 99):
        session.heard(text_end)
    assert said(session) == ["u:Hi.", "a:The sea"]


def test_an_earlier_reply_is_cut_while_later_turns_stay():
    session = begun("The sea is wide.", "ok")
    ask(session, "Hi.")
    ask(session, "Go.")
    assert session.heard(7, turn_id=0)
    assert said(session) == ["u:Hi.", "a:The sea", "u:Go.", "a:ok"]
    assert_true_to_its_history(session)


def test_nothing_is_cut_where_nothing_was_replied():
    session = begun("ok")
    assert not session.heard(3)
    finish(session.prefill(request("Hi.")))
    assert not session.heard(3)
    assert not session.heard(3, turn_id=7)
    assert text_of(session) == "<s>u:Hi."


# Drop, edit, reset, fork


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


# Snapshot and rollback


SNAPSHOT = StreamingConfig(enable_speculative_snapshot=True)


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
    session.heard(0, turn_id=0)
    ask(session, "Hey.")
    assert session.rollback().success
    assert tuple(session.history_tokens) == tokens


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


# Interruption


def test_a_flush_stops_a_long_prefill_within_a_slice_and_the_rest_is_all_that_is_computed_later():
    session = begun("ok")
    text = "x" * 2000
    work = session.prefill(request(text))
    for _ in range(3):
        next(work)
    work.close()
    slices = session._model.slices
    assert slices == [SLICE_TOKENS] * 3
    assert session.cache_length == 3 * SLICE_TOKENS
    usage = finish(session.prefill(request(text))).usage
    assert usage.reused_tokens == 3 * SLICE_TOKENS
    assert usage.computed_tokens == len(tokenize(f"<s>u:{text}")) - 3 * SLICE_TOKENS
    assert max(slices) == SLICE_TOKENS
    assert said(session) == [f"u:{text}"]


def test_a_message_that_was_half_read_may_be_gone_on_with_or_said_again():
    session = begun("ok")
    for piece in ("x" * 100, "y"):
        work = session.prefill(request(piece, is_last_chunk=False))
        next(work, None)
        work.close()
    assert said(session) == ["u:" + "x" * 100 + "y"]
    for pieces in ("y", "yy"):
        finish(session.prefill(request("y", is_last_chunk=False)))
        assert said(session) == ["u:" + "x" * 100 + pieces]


def test_the_same_message_twice_is_two_messages_if_nothing_was_interrupted():
    session = begun("ok")
    for _ in range(2):
        finish(session.prefill(request("Hi.")))
    assert said(session) == ["u:Hi. Hi."]


def test_a_refusal_in_between_does_not_make_a_half_read_message_be_said_twice():
    session = begun("ok", context_tokens=600)
    work = session.prefill(request("x" * 100))
    next(work)
    work.close()
    assert refusal(session, session.prefill(request("y" * 1000))).code == "context_full"
    finish(session.prefill(request("x" * 100)))
    assert said(session) == ["u:" + "x" * 100]


@CROPS
def test_closed_at_any_checkpoint_the_session_is_true_and_the_next_turn_goes_on(can_crop):
    def conversation(closed_after):
        """A turn that is closed at its n-th checkpoint, then another one. Returns whether the first was closed."""
        session = begun("Hello.", "Say the né 🙂#", "Bye.", can_crop=can_crop)
        ask(session, "Hi.")
        count, is_closed, yielded = 0, False, []
        text = "x" * 70
        for work in (session.prefill(request(text)), session.generate(generation=Generation(stop=["##x"]))):
            for chunk in work:
                yielded.append(chunk.text_delta if chunk is not None else "")
                if (count := count + 1) == closed_after:
                    work.close()
                    is_closed = True
            assert_true_to_its_history(session)
            if is_closed:
                break
        assert session.turns.last.reply in ({"".join(yielded)} | ({None} if not any(yielded) else set()))
        ask(session, "Go on.")
        assert_true_to_its_history(session)
        reply = f"</s><s>a:{''.join(yielded).strip()}</s><s>u:Go on." if any(yielded) else " Go on."
        expected = f"<s>u:Hi.</s><s>a:Hello.</s><s>u:{text}{reply}</s><s>a:"
        assert re.sub(r" +</s>", "</s>", text_of(session)).startswith(expected)
        return is_closed

    closed_after = 1
    while conversation(closed_after):
        closed_after += 1
    assert closed_after > 12


def test_a_generate_closed_before_it_began_leaves_the_turn_to_be_answered():
    session = begun("ok")
    finish(session.prefill(request("Hi.")))
    session.generate().close()
    assert finish(session.generate()).full_text == "ok"


def test_a_generate_closed_while_it_reads_leaves_the_turn_to_be_answered():
    session = begun("ok")
    session.add([ChatMessage(role="user", content="x" * 100)])
    work = session.generate()
    next(work)
    work.close()
    assert session.cache_length == SLICE_TOKENS
    assert finish(session.generate()).full_text == "ok"
    assert session.usage.reused_tokens == SLICE_TOKENS


# What happens meanwhile


def meanwhile(change, steps=5):
    """A reply during which `change` is done to the session: the session, and the whole reply."""
    session = begun("one", "The sea is the widest.", "three")
    ask(session, "Hi.")
    finish(session.prefill(request("How is it?")))
    work = session.generate()
    for _ in range(steps):
        next(work)
    change(session)
    response = finish(work)
    assert_true_to_its_history(session)
    return session, response.full_text


@pytest.mark.parametrize("steps", [1, 5, 19])
def test_a_message_that_comes_during_a_reply_waits_behind_it(steps):
    session, reply = meanwhile(
        lambda session: session.add([ChatMessage(role="user", content="And?")], turn_id=7), steps
    )
    assert reply == "The sea is the widest."
    assert said(session) == ["u:Hi.", "a:one", "u:How is it?", f"a:{reply}", "u:And?"]
    assert finish(session.generate()).full_text == "three"


def test_an_earlier_reply_that_is_cut_during_a_reply_does_not_disturb_it():
    session, reply = meanwhile(lambda session: session.heard(0, turn_id=0))
    assert reply == "The sea is the widest."
    assert said(session) == ["u:Hi. How is it?", f"a:{reply}"]
    assert ask(session, "And?").success


def test_a_turn_that_is_dropped_during_its_reply_never_happened():
    session, _ = meanwhile(lambda session: session.drop())
    assert said(session) == ["u:Hi.", "a:one"]


def test_a_reset_during_a_reply_leaves_nothing_of_it():
    session, _ = meanwhile(lambda session: session.reset())
    assert said(session) == []
    assert session.tokens == ()


def test_a_cache_lost_during_a_reply_is_computed_again():
    _, reply = meanwhile(lambda session: session.lose_cache())
    assert reply == "The sea is the widest."


def test_a_drop_during_a_prefill_leaves_nothing_of_it():
    session = begun("one", "two")
    ask(session, "Hi.")
    work = session.prefill(request("x" * 200))
    next(work)
    session.drop()
    finish(work)
    assert said(session) == ["u:Hi.", "a:one"]
    assert_true_to_its_history(session)


# What fails


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
        finish(session.prefill(request("How", is_last_chunk=False)))
        session.evict()
        finish(session.prefill(request("?")))
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


# Templates


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
        response = finish(session.generate())
        assert response.usage.input_tokens == response.usage.reused_tokens + response.usage.computed_tokens
        assert spell(session._prompt._tokens).startswith(expected)
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


# The context's limit


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


# Refusals


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


# In one go


def test_a_whole_turn_in_one_go():
    session = begun("Hello.")
    response = run(session.complete_turn(request("Hi.", is_last_chunk=False)))
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


# Eviction


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
    session = Session("s", FakeModel(), context_tokens=999)
    finish(session.prefill(request("Hi.")))
    work = session.generate(generation=Generation(max_new_tokens=1))
    next(work)
    tokens = tokenize("<s>u:Hi.</s><s>a:")
    reply = session._cached.tokens[len(tokens) :]
    assert reply in ([], greedy(session._model, tokens, 1))
    assert END not in session.tokens[len(tokens) :]
    assert FIRST_BYTE + ord("H") in session.tokens
    np.testing.assert_array_equal(session.tokens[: len(tokens)], tokens)
