"""Replies: chunks, why they end, and which settings hold."""

from __future__ import annotations

import pytest
from session.conversing import (
    ABLE,
    CROPS,
    SNAPSHOT,
    ask,
    assert_true_to_its_history,
    begun,
    chunks_of,
    finish,
    refusal,
    request,
    said,
    text_of,
)
from session.fake_model import START, FakeModel, tokenize

from dora_voice_session.cached_tokens import SLICE_TOKENS
from dora_voice_session.schema import ChatMessage, Generation, SessionSettings, StreamingConfig
from dora_voice_session.session import Session


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


def test_what_a_request_asks_for_holds_for_its_own_turn_only():
    session = begun("one two three", capabilities=ABLE)
    asked = {"generation": Generation(max_new_tokens=3), "enable_thinking": True, "streaming": SNAPSHOT}
    assert ask(session, "Hi.", **asked).full_text == "one"
    for turn_id, say in ((5, session.add), (6, session.revise)):
        say([ChatMessage(role="user", content="Ho.")], turn_id=turn_id)
        assert session.generation == Generation()
        assert session.streaming == StreamingConfig()
        assert finish(session.generate()).full_text == "one two three"


def test_what_a_request_asks_for_stays_with_its_turn_whatever_is_said_after_it():
    session = begun("one two three")
    finish(session.prefill(request("Hi.", generation=Generation(max_new_tokens=3))))
    session.add([ChatMessage(role="user", content="Ho.")])
    fork = session.fork("t")
    session.add([ChatMessage(role="user", content="Hey.")], turn_id=5)
    assert finish(session.generate(turn_id=0)).full_text == "one"
    assert finish(session.generate(turn_id=5)).full_text == "one two three"
    assert finish(fork.generate()).full_text == "one"
