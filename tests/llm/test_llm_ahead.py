"""Ahead of the user: what is guessed is read early, what is not committed leaves no trace."""

from __future__ import annotations

import pytest
from llm.recorder import Recorder, history, make_stage

from dora_voice.messages import Control, Played, Text
from dora_voice.testing import Driver
from dora_voice_llm.node import PORTS


def say(text, segment_id, *, seq=0, fin=True, **more):
    return Text(port="text", text=text, session_id="a", segment_id=segment_id, seq=seq, fin=fin, **more)


def guess(text, segment_id, seq=0):
    return Text(port="hypothesis", text=text, session_id="a", segment_id=segment_id, seq=seq)


def control(verb, segment_id):
    return Control(port="control", verb=verb, session_id="a", segment_id=segment_id, flush=verb == "flush")


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def driver(recorder):
    return Driver(make_stage(recorder), PORTS)


def test_what_was_guessed_right_is_not_computed_again(driver, recorder):
    driver.feed(guess("What is the capital", 1), guess("What is the capital of France", 1, seq=1))
    assert driver.run() == []
    ahead = sum(recorder.extended)
    assert ahead > 5
    recorder.extended.clear()
    driver.feed(say("What is the capital of France?", 1))
    driver.run()
    assert recorder.extended[0] < 5
    assert recorder.seen == [["What is the capital of France?"]]


def test_a_wrong_guess_leaves_no_trace(driver, recorder):
    driver.feed(guess("What is the cattle of", 1))
    driver.run()
    driver.feed(say("What is the capital?", 1))
    driver.run()
    assert recorder.seen == [["What is the capital?"]]
    assert history(driver)[0] == ("user", "What is the capital?")


@pytest.mark.parametrize("end", [say("", 1, rejected="noise"), say("", 1, error="crash: gone"), control("drop", 1)])
def test_a_guess_that_comes_to_nothing_leaves_the_history(driver, recorder, end):
    driver.feed(guess("Thank you", 1))
    driver.run()
    driver.feed(end, say("Hello.", 2))
    driver.run()
    assert recorder.seen == [["Hello."]]


def test_a_guess_that_comes_late_changes_nothing(driver, recorder):
    driver.feed(say("Hello.", 1))
    driver.run()
    driver.feed(guess("Hell", 1))
    driver.run()
    assert history(driver)[0] == ("user", "Hello.")


def test_a_long_guess_is_left_within_a_slice_when_the_words_are_there(driver, recorder):
    driver.feed(guess("word " * 300, 1))
    while not recorder.extended:
        driver.step()
    driver.feed(say("Something else.", 1))
    driver.run()
    assert recorder.seen == [["Something else."]]
    assert sum(recorder.extended) < 100


def test_a_guess_that_is_refused_does_not_end_the_segment(recorder):
    driver = Driver(make_stage(recorder, context_tokens=600), PORTS)
    driver.feed(guess("word " * 300, 1))
    assert driver.run() == []
    driver.feed(say("Hello.", 1))
    driver.run()
    assert driver.sent[-1].error is None
    assert recorder.seen[-1] == ["Hello."]


def test_nothing_is_guessed_while_an_older_reply_is_being_heard(driver, recorder):
    driver.feed(say("Count.", 1))
    driver.run()
    recorder.extended.clear()
    driver.feed(guess("Stop", 2))
    driver.run()
    assert recorder.extended == []
    driver.feed(Played(port="played", samples=1, text_end=19, session_id="a", segment_id=1, fin=True))
    driver.feed(guess("Stop it", 2, seq=1))
    driver.run()
    assert recorder.extended != []


def test_a_speculative_reply_is_marked_and_one_that_is_dropped_never_happened(driver, recorder):
    driver.feed(say("How is", 1, speculative=True))
    sent = driver.run()
    assert {m.speculative for m in sent if m.port == "text"} == {True}
    driver.feed(control("drop", 1), say("How is the sea?", 2))
    driver.run()
    assert recorder.seen == [["How is"], ["How is the sea?"]]
    assert [content for _, content in history(driver)] == ["How is the sea?", "One two three four."]


def test_a_turn_is_dropped_after_its_commit_just_the_same(driver, recorder):
    driver.feed(say("How is", 1), control("commit", 1))
    driver.run()
    driver.feed(Played(port="played", samples=1, text_end=4, session_id="a", segment_id=1))
    driver.feed(control("drop", 1), say("How is the sea?", 2))
    driver.run()
    assert recorder.seen[-1] == ["How is the sea?"]
    assert [content for _, content in history(driver)] == ["How is the sea?", "One two three four."]


def test_a_flush_after_the_commit_keeps_the_words_and_what_was_heard(driver, recorder):
    driver.feed(say("Count.", 1, speculative=True), control("commit", 1))
    driver.run()
    driver.feed(control("flush", 2), say("Stop.", 2))
    driver.feed(Played(port="played", samples=1, text_end=8, session_id="a", segment_id=1, fin=True))
    driver.run()
    assert recorder.seen[-1] == ["Count.", "One two", "Stop."]
