"""Several requests in one segment, and words that come in the segment of a request: nothing is booked on another."""

from __future__ import annotations

import pytest
from llm.events import act, asked, control, fins, guess, half_way, played, say
from llm.recorder import Recorder, ask, history, make_stage, request, results

from dora_voice.testing import Driver
from dora_voice_llm.node import PORTS

SILENT = {"generate_audio": False}


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def start(recorder, tmp_path):
    """Starts the node; that the one before is just left is its kill -9."""

    def start(restarts=0):
        return Driver(make_stage(recorder, tmp_path), PORTS, restarts=restarts, run="run")

    return start


@pytest.fixture
def driver(start):
    return start()


@pytest.mark.parametrize("second", [asked("complete", "B?", streaming=SILENT), asked("prefill", "B?")])
def test_what_was_heard_in_a_segment_is_booked_before_its_next_request(driver, recorder, second):
    ask(driver, asked("complete", "A?"), 1, fin=False)
    assert ask(driver, second, 1, seq=1) == [], "the reply to the first is being heard"
    driver.feed(played(1, 7, fin=True))
    assert [result["type"] for result in results(driver.run())] != []
    assert history(driver)[:3] == [("user", "A?"), ("assistant", "One two"), ("user", "B?")]


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("second", [asked("complete", "B?", streaming=SILENT), asked("prefill", "B?")])
def test_a_request_that_is_stopped_while_its_segment_is_still_heard_changes_nothing(start, second, restarts):
    driver = start()
    ask(driver, asked("complete", "A?"), 1, fin=False)
    ask(driver, second, 1, seq=1)
    refused, done = ask(driver, act("stop"), 2)
    assert (refused["code"], done["type"]) == ("busy", "done")
    if restarts:
        driver = start(restarts)
    driver.feed(played(1, 7, fin=True))
    driver.run()
    assert history(driver) == [("user", "A?"), ("assistant", "One two")]


@pytest.mark.parametrize("breaks_in", range(5))
def test_a_second_request_that_fails_holds_nobody_up(driver, recorder, breaks_in):
    ask(driver, asked("complete", "A?"), 1, fin=False)
    recorder.breaks_in = breaks_in
    ask(driver, asked("complete", "B?", streaming=SILENT), 1, seq=1)
    driver.feed(played(1, 19, fin=True), say("Next?", 2))
    driver.run()
    assert fins(driver)[2] == ("One two three four.", None)


def test_words_do_not_take_the_place_of_a_message_that_is_being_read(driver):
    ask(driver, asked("prefill", "Important."), 1)
    driver.feed(say("Hello.", 1))
    driver.run()
    assert fins(driver)[1] == ("", "bad_request: segment 1: expected a new one, this has its message already")
    ask(driver, asked("prefill", " More.", is_last_chunk=True), 2)
    assert history(driver) == [("user", "Important. More.")]


@pytest.mark.parametrize("end", [say("", 1, rejected="noise"), control("flush", 2), guess("Hm", 2)])
def test_a_guess_does_not_take_the_place_of_a_message_that_is_being_read(driver, end):
    ask(driver, asked("prefill", "Important."), 1)
    driver.feed(guess("Hm", 1))
    driver.run()
    assert history(driver) == [("user", "Important.")]
    driver.feed(end)
    driver.run()
    ask(driver, asked("prefill", " More.", is_last_chunk=True), 3)
    assert history(driver) == [("user", "Important. More.")]


def test_words_that_were_committed_while_they_waited_for_another_request_outlive_a_crash(start):
    driver = start()
    half_way(driver, asked("complete", "word " * 100, streaming=SILENT), 1)
    driver.feed(say("Spec.", 2, speculative=True))
    driver.step()
    driver.feed(control("commit", 2))
    driver.run()
    assert ("user", "Spec.") in history(driver)
    assert ("user", "Spec.") in history(start(restarts=1))


def test_words_that_were_committed_while_their_guess_was_read_outlive_a_crash(start):
    driver = start()
    driver.feed(guess("word " * 100, 1))
    driver.step()
    driver.step()
    driver.feed(say("Hello.", 1, speculative=True))
    driver.step()
    driver.feed(control("commit", 1))
    driver.run()
    assert history(start(restarts=1))[0] == ("user", "Hello.")


def test_words_whose_session_ended_while_they_waited_are_committed_in_the_next(start):
    driver = start()
    half_way(driver, asked("complete", "word " * 100, streaming=SILENT), 1)
    driver.feed(request(act("end"), 2), say("Spec.", 3, speculative=True))
    driver.step()
    driver.step()
    driver.feed(control("commit", 3))
    driver.run()
    assert history(start(restarts=1))[0] == ("user", "Spec.")


def test_words_that_nobody_committed_while_they_waited_do_not(start):
    driver = start()
    half_way(driver, asked("complete", "word " * 100, streaming=SILENT), 1)
    driver.feed(say("Spec.", 2, speculative=True), control("commit", 3))
    driver.run()
    assert ("user", "Spec.") not in history(start(restarts=1))
