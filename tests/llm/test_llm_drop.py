"""What never happened: a reply leaves with the segment that made it, whatever turn it answered, also for a restart."""

from __future__ import annotations

import pytest
from llm.events import act, asked, control, played, say
from llm.recorder import Recorder, ask, history, make_stage

from dora_voice.testing import Driver
from dora_voice_llm.node import PORTS

GENERATE = act("generate")


@pytest.fixture
def start(tmp_path):
    """Starts the node; that the one before is just left is its kill -9."""

    def start(restarts=0):
        return Driver(make_stage(Recorder(), tmp_path), PORTS, restarts=restarts, run="run")

    return start


@pytest.mark.parametrize("reports", [[], [played(2, 3)], [played(2, 19, fin=True)]])
@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_reply_to_an_earlier_message_is_taken_back(start, reports, restarts):
    driver = start()
    ask(driver, asked("prefill", "Count.", is_last_chunk=True), 1)
    ask(driver, GENERATE, 2)
    driver.feed(*reports)
    driver.run()
    if restarts == 2:
        driver = start(restarts=1)
    driver.feed(control("drop", 2))
    driver.run()
    if restarts:
        driver = start(restarts)
    assert history(driver) == [("user", "Count.")]
    driver.feed(say("Next?", 5))
    driver.run()
    assert history(driver) == [("user", "Count. Next?"), ("assistant", "One two three four.")]


def test_a_reply_that_nobody_hears_is_taken_back_too(start):
    driver = start()
    ask(driver, asked("prefill", "Count.", is_last_chunk=True), 1)
    ask(driver, act("generate", streaming={"generate_audio": False}), 2)
    driver.feed(control("drop", 2))
    driver.run()
    for each in (driver, start(restarts=1)):
        assert history(each) == [("user", "Count.")]


def test_what_was_taken_back_can_be_answered_again(start):
    driver = start()
    ask(driver, asked("prefill", "Count.", is_last_chunk=True), 1)
    ask(driver, GENERATE, 2)
    driver.feed(control("drop", 2))
    driver.run()
    assert ask(driver, GENERATE, 3)[-1]["response"]["success"]
    assert history(driver) == [("user", "Count."), ("assistant", "One two three four.")]


def test_a_dropped_message_takes_its_reply_along_wherever_that_was_made(start):
    driver = start()
    ask(driver, asked("prefill", "Count.", is_last_chunk=True), 1)
    ask(driver, GENERATE, 2)
    driver.feed(played(2, 19, fin=True), control("drop", 1))
    driver.run()
    for each in (driver, start(restarts=1)):
        assert history(each) == []


def test_a_rollback_does_not_bring_back_what_was_not_heard(start):
    driver = start()
    ask(driver, asked("complete", "A?"), 1)
    ask(driver, asked("prefill", "B.", is_last_chunk=True), 2)
    ask(driver, act("generate", streaming={"enable_speculative_snapshot": True}), 3)
    ask(driver, act("stop"), 4)
    driver.feed(control("flush", 5), played(1, 3, fin=True))
    driver.run()
    ask(driver, act("rollback"), 6)
    for each in (driver, start(restarts=1)):
        assert history(each) == [("user", "A?"), ("assistant", "One"), ("user", "B.")]


def test_a_reply_that_is_being_heard_still_is_after_a_rollback(start):
    driver = start()
    ask(driver, asked("complete", "A?"), 1)
    ask(driver, asked("prefill", "B.", is_last_chunk=True), 2)
    ask(driver, act("generate", streaming={"enable_speculative_snapshot": True}), 3)
    ask(driver, act("stop"), 4)
    ask(driver, act("rollback"), 5)
    driver.feed(control("flush", 6), played(1, 3, fin=True))
    driver.run()
    for each in (driver, start(restarts=1)):
        assert history(each) == [("user", "A?"), ("assistant", "One"), ("user", "B.")]
