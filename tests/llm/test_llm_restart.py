"""A killed node comes back with the history that was committed, and only that."""

from __future__ import annotations

import pytest
from llm.recorder import Recorder, ask, history, make_stage

from dora_voice.messages import Control, Played, Text
from dora_voice.testing import Driver
from dora_voice_llm.node import PORTS


def say(text, segment_id, *, seq=0, fin=True, **more):
    return Text(port="text", text=text, session_id="a", segment_id=segment_id, seq=seq, fin=fin, **more)


def control(verb, segment_id):
    return Control(port="control", verb=verb, session_id="a", segment_id=segment_id, flush=verb == "flush")


def played(segment_id, text_end, *, fin=False):
    return Played(port="played", samples=1, text_end=text_end, session_id="a", segment_id=segment_id, fin=fin)


@pytest.fixture
def start(tmp_path):
    """Starts the node; that the one before is just left is its kill -9."""

    def start(restarts=0, run="run-1", **wiring):
        recorder = Recorder()
        driver = Driver(make_stage(recorder, tmp_path), PORTS, restarts=restarts, run=run, **wiring)
        return driver, recorder

    return start


def test_the_next_turn_remembers_the_turns_before_the_crash(start):
    driver, _ = start()
    driver.feed(say("Count.", 1))
    driver.run()
    driver.feed(played(1, 19, fin=True))
    driver.run()
    driver, recorder = start(restarts=1)
    assert history(driver) == [("user", "Count."), ("assistant", "One two three four.")]
    driver.feed(say("Again.", 2))
    driver.run()
    assert recorder.seen == [["Count.", "One two three four.", "Again."]]


def test_a_crash_in_the_middle_of_a_reply_keeps_what_the_speaker_still_says_was_heard(start):
    driver, _ = start()
    driver.feed(say("Count.", 1))
    while len(driver.sent) < 3:
        driver.step()
    driver, recorder = start(restarts=1)
    driver.feed(played(1, 8, fin=True), say("Go on.", 2))
    driver.run()
    assert recorder.seen == [["Count.", "One two", "Go on."]]


def test_a_report_that_was_lost_with_the_crash_is_waited_for_200_ms_only(start):
    driver, _ = start()
    driver.feed(say("Count.", 1))
    driver.run()
    driver.feed(played(1, 3))
    driver.run()
    driver, recorder = start(restarts=1)
    driver.feed(say("Go on.", 2))
    assert driver.advance(199) == []
    driver.advance(1)
    assert recorder.seen == [["Count.", "One", "Go on."]], "so far it was heard when the node was killed"


def test_what_was_not_committed_is_not_remembered(start):
    driver, _ = start()
    driver.feed(say("Count.", 1, speculative=True))
    driver.run()
    driver, _ = start(restarts=1)
    assert ask(driver, {"type": "history", "session_id": "a"}, 9)[0]["code"] == "unknown_session"


def test_what_was_committed_later_is(start):
    driver, _ = start(wired={"text", "control", "request"})
    driver.feed(say("Count.", 1, speculative=True))
    driver.run()
    driver.feed(control("commit", 1))
    driver.run()
    driver, _ = start(restarts=1)
    assert history(driver) == [("user", "Count."), ("assistant", "One two three four.")]


def test_what_was_dropped_or_ended_stays_so(start):
    driver, _ = start()
    driver.feed(say("Hm.", 1), control("drop", 1), say("Hello.", 2))
    driver.run()
    driver, _ = start(restarts=1)
    assert history(driver)[0] == ("user", "Hello.")
    driver.feed(control("end", 2))
    driver.run()
    driver, _ = start(restarts=2)
    assert ask(driver, {"type": "history", "session_id": "a"}, 9)[0]["code"] == "unknown_session"


def test_requests_and_settings_come_back_too(start):
    driver, _ = start(wired={"request"})
    ask(driver, {"type": "session", "session_id": "a", "settings": {"system_prompt": "Be kind."}}, 1)
    message = {"role": "user", "content": "Count."}
    ask(driver, {"type": "complete", "request": {"session_id": "a", "messages": [message]}}, 2)
    driver, recorder = start(restarts=1)
    ask(driver, {"type": "complete", "request": {"session_id": "a", "messages": [message]}}, 3)
    driver.advance(300)
    assert recorder.seen[-1] == ["Be kind.", "Count.", "One two three four.", "Count."]


def test_a_new_run_does_not_resurrect_an_old_one(start):
    driver, _ = start()
    driver.feed(say("Count.", 1))
    driver.run()
    for restarts in (0, 1):
        driver, _ = start(restarts=restarts, run="run-2")
        assert ask(driver, {"type": "history", "session_id": "a"}, 9)[0]["code"] == "unknown_session"


def test_a_run_that_ended_leaves_no_file(start, tmp_path):
    driver, _ = start()
    driver.feed(say("Count.", 1))
    driver.run()
    assert list(tmp_path.iterdir()) != []
    driver.scheduler.close()
    assert list(tmp_path.iterdir()) == []
