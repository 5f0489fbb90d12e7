"""A context that is full: what it gave up for good stays away, what made way for nothing comes back."""

from __future__ import annotations

import pytest
from llm.events import act, asked, control, fins, guess, say
from llm.recorder import Recorder, ask, history, make_stage, request

from dora_voice.testing import Driver
from dora_voice_llm.node import PORTS

LONG = " ".join(f"w{i}" for i in range(120))
"""Fits, but not beside eight turns."""
HUGE = " ".join(f"w{i}" for i in range(300))
"""Doesn't fit even alone."""


@pytest.fixture
def start(tmp_path):
    """Starts the node with a small context; that the one before is just left is its kill -9."""

    def start(restarts=0, *more_inputs):
        stage = make_stage(Recorder(), tmp_path, context_tokens=700)
        wired = {"text", "hypothesis", "control", "request", *more_inputs}
        return Driver(stage, PORTS, restarts=restarts, run="run", wired=wired)

    return start


@pytest.fixture
def driver(start):
    """Eight turns were said."""
    driver = start()
    for i in range(1, 9):
        driver.feed(say(f"Q{i}? a b c d e f g h i j", i))
        driver.run()
    assert len(history(driver)) == 16
    return driver


def conversation(driver):
    return driver.stage._conversations.get("a")


def step(driver, times):
    for _ in range(times):
        driver.step()


@pytest.mark.parametrize("times", range(1, 8))
def test_what_was_given_up_for_words_that_were_flushed_early_does_not_come_back(driver, start, times):
    driver.feed(say(LONG, 9))
    step(driver, times)
    driver.feed(control("flush", 10))
    driver.run()
    assert len(history(driver)) < 16
    assert history(start(restarts=1)) == history(driver)


@pytest.mark.parametrize("times", range(1, 8))
def test_what_was_given_up_for_a_request_that_was_flushed_early_does_not_come_back(driver, start, times):
    ask(driver, asked("prefill", " ".join("x" * 40), is_last_chunk=True), 9)
    driver.feed(request(act("generate", generation={"max_new_tokens": 550}), 10))
    step(driver, times)
    driver.feed(control("flush", 11))
    driver.run()
    assert history(start(restarts=1)) == history(driver)


@pytest.mark.parametrize("end", [control("flush", 10), say("", 9, rejected="noise"), control("drop", 9)])
def test_a_guess_that_came_to_nothing_costs_nothing(driver, start, end):
    before = history(driver)
    driver.feed(guess(LONG, 9))
    driver.run()
    assert history(driver) == before
    driver.feed(end)
    driver.run()
    assert history(driver) == before
    assert history(start(restarts=1)) == before


def test_words_that_were_too_long_to_be_read_ahead_are_answered(driver):
    driver.feed(guess(LONG, 9))
    driver.run()
    driver.feed(say(LONG, 9))
    driver.run()
    assert history(driver) == [("user", LONG), ("assistant", "One two three four.")]


@pytest.mark.parametrize("times", [1, 2, 3, 5, 50])
@pytest.mark.parametrize("is_guessed", [True, False])
def test_what_made_way_for_a_half_sentence_is_there_again_when_that_never_happened(driver, start, times, is_guessed):
    before = history(driver)
    if is_guessed:
        driver.feed(guess("w0", 9))
        driver.run()
    driver.feed(say(LONG, 9, speculative=True))
    step(driver, times)
    assert history(start(restarts=1)) == before, "not committed yet"
    driver.feed(control("drop", 9))
    driver.run()
    assert history(driver) == before
    assert history(start(restarts=2)) == before
    driver.feed(say("Go on.", 10))
    driver.run()
    assert history(driver)[:16] == before


@pytest.mark.parametrize("times", [1, 2, 3, 5, 50])
def test_what_made_way_for_words_that_became_real_is_gone(driver, start, times):
    driver.feed(say(LONG, 9, speculative=True))
    step(driver, times)
    driver.feed(control("commit", 9))
    driver.run()
    assert history(driver) == [("user", LONG), ("assistant", "One two three four.")]
    assert history(start(restarts=1)) == history(driver)


def test_a_half_sentence_that_itself_made_way_outlives_a_crash_when_it_is_committed(driver, start):
    driver.feed(say(LONG, 9, speculative=True))
    driver.run()
    driver.feed(say(f"And {LONG}", 10, speculative=True))
    driver.run()
    driver.feed(control("commit", 9))
    driver.run()
    assert history(start(restarts=1)) == [("user", LONG), ("assistant", "One two three four.")]
    driver.feed(control("drop", 10))
    driver.run()
    assert history(driver) == [("user", LONG), ("assistant", "One two three four.")]


def test_what_made_way_for_words_that_are_taken_back_later_is_there_again(driver, start):
    before = history(driver)
    driver.feed(say(LONG, 9))
    driver.run()
    driver.feed(control("drop", 9))
    driver.run()
    assert history(driver) == before
    assert history(start(restarts=1)) == before


def test_a_reply_that_had_made_way_is_dropped_all_the_same(driver, start):
    driver.feed(say(LONG, 9, speculative=True))
    driver.run()
    driver.feed(control("drop", 8), control("drop", 9))
    driver.run()
    assert len(history(driver)) == 14
    assert history(start(restarts=1)) == history(driver)


@pytest.mark.parametrize("is_late", [True, False])
def test_words_that_nobody_answers_do_not_grow_without_bound(start, is_late):
    driver = start(0, "played")
    driver.feed(control("flush", 1000) if is_late else say("Count.", 0))
    driver.run()
    for i in range(1, 60):
        driver.feed(say(f"Word {i} " + "w " * 20, i))
        driver.run()
        if not is_late:
            driver.feed(control("flush", i + 1))
            driver.run()
    assert len(conversation(driver)._session.turns) < 20
    assert history(driver)[0][1].split()[-21] == "59", "the latest is there"
    assert history(start(restarts=1)) == history(driver)


def test_words_that_nobody_answers_and_that_do_not_fit_are_not_remembered(driver, start, caplog):
    before = history(driver)
    driver.feed(control("flush", 10))
    driver.run()
    driver.feed(say(HUGE, 9))
    driver.run()
    assert history(driver) == before
    assert "session=a segment=9: not remembered: a message of" in caplog.text
    assert history(start(restarts=1)) == before


def test_half_sentences_that_nobody_commits_are_not_counted_for_ever(start):
    driver = start()
    for i in range(1, 100):
        driver.feed(say(f"Q{i}?", i, speculative=True))
        driver.run()
    assert len(conversation(driver)._uncommitted) < 50
    assert fins(driver)[99] == ("One two three four.", None)
