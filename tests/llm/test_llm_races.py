"""What attackers found, each a list of events: sessions that hung, words that got mixed, replies that vanished."""

from __future__ import annotations

import pytest
from llm.events import LONG, act, asked, control, fins, guess, half_way, played, say, words_sent
from llm.recorder import Recorder, ask, history, make_stage, request, results

from dora_voice.testing import Driver
from dora_voice_llm.fair_lock import MOST_TICKETS
from dora_voice_llm.node import PORTS
from dora_voice_session.schema import Generation, SessionSettings


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def driver(recorder):
    return Driver(make_stage(recorder), PORTS)


@pytest.fixture
def unheard(recorder):
    """The same without a speaker that reports."""
    return Driver(make_stage(recorder), PORTS, wired={"text", "hypothesis", "control", "request"})


ANSWER = ("One two three four.", None)


# Nothing hangs


def test_a_refused_generate_holds_nobody_up(driver):
    ask(driver, asked("complete", streaming={"generate_audio": False}), 1)
    assert ask(driver, {"type": "generate", "session_id": "a"}, 2)[0]["code"] == "nothing_to_answer"
    driver.feed(say("Next?", 3))
    driver.run()
    assert fins(driver)[3] == ANSWER


def test_a_speaker_that_is_gone_for_good_in_the_middle_of_a_reply_holds_nobody_up(driver):
    driver.feed(say("Count.", 1))
    words_sent(driver, 2)
    driver.intake.closed("played")
    driver.run()
    driver.feed(say("Next?", 2))
    driver.run()
    assert fins(driver)[2] == ANSWER


def test_a_session_in_which_somebody_waits_does_not_expire(recorder):
    driver = Driver(make_stage(recorder, idle_s=10), PORTS)
    driver.feed(say("Count.", 1))
    driver.run()
    driver.feed(say("Wait.", 2))
    driver.advance(11_000)
    driver.feed(say("Hi.", 1, "b"))
    driver.run()
    driver.feed(played(1, 19, fin=True))
    driver.run()
    assert recorder.seen[-1] == ["Count.", "One two three four.", "Wait."]


@pytest.mark.parametrize("what", ["stop", "reset", "rollback", "end"])
def test_what_ends_work_does_not_wait_for_the_loudspeaker(driver, what):
    driver.feed(say("Count.", 1))
    driver.run()
    driver.feed(say("Wait.", 2))
    driver.run()
    driver.feed(request(act(what), 3))
    (result,) = results(driver.run())
    assert result["type"] == ("rollback" if what == "rollback" else "done")
    assert fins(driver)[2] == ("", None)


def test_a_flood_of_requests_is_refused(driver):
    driver.feed(say("Count.", 1))
    driver.run()
    driver.feed(*(request(asked("complete", f"{i}?"), i) for i in range(2, MOST_TICKETS + 12)))
    refused = results(driver.run())
    assert {result["code"] for result in refused} == {"busy"}
    assert len(refused) == 10
    driver.feed(control("flush", MOST_TICKETS + 20), say("Next?", MOST_TICKETS + 20))
    driver.advance(300)
    assert fins(driver)[MOST_TICKETS + 20] == ANSWER


# Every request gets its result


def test_a_request_about_a_segment_that_was_answered_is_served(unheard):
    unheard.feed(say("Hi.", 5))
    unheard.run()
    assert ask(unheard, act("history"), 5, fin=False)[0]["type"] == "history"
    (refused,) = ask(unheard, asked("complete"), 5, seq=1)
    assert "segment 5: expected a new one" in refused["error"]
    assert [content for _, content in history(unheard)] == ["Hi.", "One two three four."]


def test_a_client_without_ids_and_speech_without_ids_get_along(unheard):
    unheard.feed_raw("request", request(asked("complete", session_id="default"), 0).text)
    unheard.run()
    unheard.feed_raw("text", "Spoken.")
    unheard.run()
    assert [error for _, error in fins(unheard).values()] == [None, None]
    contents = [content for _, content in history(unheard, "default")]
    assert contents == ["Typed.", "One two three four.", "Spoken.", "One two three four."]


def test_a_document_that_cannot_be_read_still_says_whose_it_was(driver):
    (failed,) = ask(driver, {"type": "sing", "request_id": "q1"}, 1)
    assert (failed["code"], failed["request_id"]) == ("bad_request", "q1")


# Speech and requests don't get into each other


def test_words_that_wait_are_not_answered_by_a_request(driver, recorder):
    ask(driver, asked("complete", "First."), 1)
    driver.feed(
        request(asked("prefill", "Read.", is_last_chunk=True), 2),
        request(asked("complete", "Typed."), 3),
        say("Spoken.", 4),
    )
    driver.run()
    driver.feed(played(1, 19, fin=True))
    driver.run()
    driver.feed(played(3, 19, fin=True))
    driver.run()
    assert recorder.seen[-1] == [
        *("First.", "One two three four.", "Read. Typed.", "One two three four.", "Spoken."),
    ]
    assert fins(driver) == {1: ANSWER, 3: ANSWER, 4: ANSWER}


@pytest.mark.parametrize("kind", ["complete", "prefill", "edit"])
def test_a_guess_is_no_part_of_a_request(unheard, kind):
    unheard.feed(guess("What is", 5))
    unheard.run()
    ask(unheard, asked(kind), 6)
    assert history(unheard)[0] == ("user", "Typed.")
    unheard.feed(say("What is up?", 7))
    unheard.run()
    assert fins(unheard)[7] == ANSWER
    assert "What is up?" in history(unheard)[-2][1]


@pytest.mark.parametrize("what", ["reset", "rollback", "edit"])
def test_words_that_come_behind_something_that_changes_the_past_are_answered(unheard, what):
    ask(unheard, asked("prefill", "Count."), 1)
    generate = {"type": "generate", "session_id": "a", "streaming": {"enable_speculative_snapshot": True}}
    unheard.feed(request(generate, 2))
    words_sent(unheard, 1)
    unheard.feed(request(asked("edit") if what == "edit" else act(what), 3), say("Hello?", 4))
    unheard.run()
    assert fins(unheard)[4] == ANSWER
    assert history(unheard)[-2][1].endswith("Hello?")


def test_a_guess_of_a_segment_that_was_flushed_leaves_no_trace(driver, recorder):
    driver.feed(guess("Thank you", 5))
    driver.run()
    driver.feed(control("flush", 6), say("Hello.", 6))
    driver.run()
    assert recorder.seen == [["Hello."]]


def test_an_open_guess_is_not_told(unheard):
    unheard.feed(guess("Thank you", 5))
    unheard.run()
    assert history(unheard) == []


# What was heard


def test_a_sound_that_ended_in_the_middle_of_a_reply_was_heard_no_further(driver, recorder):
    driver.feed(say("Count.", 1))
    words_sent(driver, 2)
    driver.feed(played(1, 3, fin=True))
    driver.run()
    driver.feed(say("Go.", 2))
    driver.run()
    assert recorder.seen[-1] == ["Count.", "One", "Go."]


def test_a_complete_that_is_refused_leaves_nothing(recorder):
    driver = Driver(make_stage(recorder), PORTS, wired={"request"})
    ask(driver, asked("complete", "One?"), 1)
    before = history(driver)
    messages = [{"role": "user", "content": "Two?"}, {"role": "assistant", "content": "Two."}]
    (failed,) = ask(driver, {"type": "complete", "request": {"session_id": "a", "messages": messages}}, 2)
    assert failed["code"] == "nothing_to_answer"
    assert history(driver) == before


def test_a_segment_id_that_goes_back_is_refused_and_changes_nothing(unheard):
    unheard.feed(say("Five.", 5))
    unheard.run()
    before = history(unheard)
    assert ask(unheard, asked("complete", "Three?"), 3)[0]["code"] == "bad_request"
    assert history(unheard) == before


# After an end, and after a restart


def test_what_comes_behind_an_end_begins_anew(unheard):
    ask(unheard, asked("complete", "Old."), 1)
    unheard.feed(request(asked("complete", "Running."), 2), request(act("end"), 3))
    unheard.feed(request(asked("complete", "New."), 4), say("Spoken.", 5))
    unheard.run()
    assert [content for role, content in history(unheard) if role == "user"] == ["New.", "Spoken."]


@pytest.fixture
def start(tmp_path):
    """Starts the node; that the one before is just left is its kill -9."""

    def start(restarts=0, wired=("text", "hypothesis", "control", "request")):
        return Driver(make_stage(Recorder(), tmp_path), PORTS, restarts=restarts, run="run", wired=wired)

    return start


def test_settings_behind_an_end_do_not_bring_back_what_was_said(start):
    driver = start()
    ask(driver, asked("complete", "Old."), 1)
    settings = {"type": "session", "session_id": "a", "settings": {"language": "de"}}
    driver.feed(request(asked("complete", "Running."), 2), request(act("end"), 3), request(settings, 4))
    driver.run()
    assert history(start(restarts=1)) == []


@pytest.mark.parametrize("when", ["before the reply", "after the reply"])
def test_a_reply_that_nobody_reports_about_outlives_a_crash(start, when):
    driver = start()
    driver.feed(say("Count.", 1, speculative=True))
    if when == "after the reply":
        driver.run()
    else:
        words_sent(driver, 2)
    driver.feed(control("commit", 1))
    for _ in range(2):
        driver.step()
    sent = "".join(m.text for m in driver.sent if m.port == "text")
    driver = start(restarts=1)
    driver.feed(say("Go.", 2))
    driver.advance(300)
    assert history(driver)[:3] == [("user", "Count."), ("assistant", sent), ("user", "Go.")]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_speculative_turn_is_written_down_by_its_commit_only(start, is_committed):
    driver = start()
    driver.feed(say("Count.", 1, speculative=True))
    driver.run()
    ask(driver, {"type": "session", "session_id": "a", "settings": {"language": "de"}}, 2)
    if is_committed:
        driver.feed(control("commit", 1))
        driver.run()
    driver = start(restarts=1)
    driver.advance(300)
    assert history(driver) == ([("user", "Count."), ("assistant", "One two three four.")] if is_committed else [])


def test_what_was_heard_of_a_requested_reply_counts_after_a_crash_too(start):
    wired = ("request", "played")
    driver = start(wired=wired)
    ask(driver, asked("prefill", "Count."), 1)
    ask(driver, {"type": "generate", "session_id": "a"}, 2)
    driver = start(restarts=1, wired=wired)
    driver.feed(played(2, 7, fin=True))
    driver.run()
    assert history(driver) == [("user", "Count."), ("assistant", "One two")]


def the_same_again_after_a_flush(driver):
    half_way(driver, asked("prefill", LONG), 1)
    driver.feed(control("flush", 2))
    driver.run()
    ask(driver, asked("prefill", LONG), 3)


def an_empty_reply_before_another(driver):
    driver.stage._service.model.said = ""
    ask(driver, asked("complete", "Q1?"), 1)
    driver.stage._service.model.said = "One two three four."
    ask(driver, asked("complete", "Q2?"), 2)


def a_speculative_turn_between_requests(driver):
    ask(driver, asked("prefill", "Read."), 1)
    driver.feed(say("Spec.", 2, speculative=True))
    driver.run()
    ask(driver, asked("complete", "Q?"), 3)
    driver.feed(control("commit", 2))


def words_that_were_flushed_behind_a_request(driver):
    ask(driver, asked("prefill", "Read."), 1)
    half_way(driver, asked("complete", LONG), 3)
    driver.feed(say("Slow.", 2))
    driver.step()
    driver.feed(control("flush", 3))


def a_speculative_turn_that_failed_before_a_request(driver):
    driver.stage._service.model.breaks_in = 0
    driver.feed(say("Spec.", 1, speculative=True))
    driver.run()
    ask(driver, asked("complete", "Read."), 2)
    driver.feed(control("flush", 3))


@pytest.mark.parametrize(
    "happens",
    [
        the_same_again_after_a_flush,
        an_empty_reply_before_another,
        a_speculative_turn_between_requests,
        words_that_were_flushed_behind_a_request,
        a_speculative_turn_that_failed_before_a_request,
    ],
)
def test_after_a_crash_the_history_is_what_it_was(start, happens):
    driver = start()
    happens(driver)
    driver.run()
    before = history(driver)
    driver = start(restarts=1)
    driver.advance(300)
    assert history(driver) == before


def test_a_journal_that_is_written_anew_loses_nothing_wherever_that_falls(start, monkeypatch):
    for limit in range(700, 1200, 20):
        monkeypatch.setattr("dora_voice_llm.journal.LARGEST_BYTES", limit)
        driver = start()
        for i in range(1, 6):
            driver.feed(say(f"Q{i}?", i))
            driver.run()
        assert len(history(start(restarts=1))) == 10


def test_what_was_heard_is_booked_on_the_turn_that_was_answered(start):
    driver = start(wired=("text", "control", "request", "played"))
    ask(driver, asked("prefill", "Read."), 1)
    half_way(driver, asked("complete", LONG), 3)
    driver.feed(say("Slow.", 2))
    driver.step()
    driver.feed(control("flush", 3))
    driver.run()
    driver.feed(played(3, 3, fin=True))
    driver.run()
    assert "One" in [content for _, content in history(driver)]


def test_dropping_what_was_spoken_leaves_what_was_requested(unheard, recorder):
    recorder.breaks_in = 0
    unheard.feed(say("Hello.", 1))
    unheard.run()
    ask(unheard, asked("complete", "Typed."), 2)
    unheard.feed(control("drop", 1))
    unheard.run()
    assert history(unheard) == [("user", "Typed."), ("assistant", "One two three four.")]


def test_a_guess_that_came_to_nothing_does_not_stand_in_the_way_of_a_rollback(unheard):
    ask(unheard, asked("prefill", "Count."), 1)
    generate = {"type": "generate", "session_id": "a", "streaming": {"enable_speculative_snapshot": True}}
    ask(unheard, generate, 2)
    unheard.feed(guess("Hm", 3))
    unheard.run()
    unheard.feed(say("", 3, rejected="noise"))
    unheard.run()
    assert ask(unheard, act("rollback"), 4)[0]["result"]["success"]


def test_a_guess_between_does_not_double_a_message_that_is_read_in_two_goes(unheard):
    half_way(unheard, asked("prefill", LONG), 1)
    unheard.feed(control("flush", 2), guess("Hm", 2))
    unheard.run()
    unheard.feed(say("", 2, rejected="noise"))
    unheard.run()
    ask(unheard, asked("prefill", LONG), 3)
    assert history(unheard) == [("user", LONG)]


def test_a_stop_gets_through_a_full_line(driver):
    driver.feed(say("Count.", 1))
    driver.run()
    driver.feed(*(request(asked("complete", f"{i}?"), i) for i in range(2, MOST_TICKETS + 2)))
    driver.run()
    assert "done" in [result["type"] for result in ask(driver, act("stop"), 200)]


def test_turns_that_the_context_gave_up_do_not_come_back(tmp_path):
    def start(restarts):
        stage = make_stage(Recorder(), tmp_path, context_tokens=560)
        return Driver(stage, PORTS, restarts=restarts, run="run", wired={"text", "request"})

    driver = start(0)
    for i in range(1, 30):
        driver.feed(say(f"Question {i}?", i))
        driver.run()
    before = history(driver)
    assert len(before) < 30
    assert history(start(1)) == before


def test_a_session_that_cannot_come_back_does_not_stop_the_others(tmp_path, caplog):
    driver = Driver(make_stage(Recorder(), tmp_path), PORTS, run="run", wired={"text", "request"})
    for name in "abc":
        driver.feed(say("Hi.", 1, name))
    driver.run()
    driver = Driver(
        make_stage(Recorder(), tmp_path, most_sessions=2), PORTS, restarts=1, run="run", wired={"text", "request"}
    )
    assert "session=c: can't go on after a restart" in caplog.text
    assert history(driver, "b")[0] == ("user", "Hi.")


def test_what_waited_and_was_dropped_made_nothing_give_way(recorder):
    """It had never been said: turns that it would have taken the place of stay, and so does what is computed."""
    generation = Generation(max_new_tokens=100)
    stage = make_stage(recorder, context_tokens=1000, settings=SessionSettings(generation=generation))
    driver = Driver(stage, PORTS, wired={"text", "hypothesis", "control", "request"})
    for i in range(1, 9):
        driver.feed(say(f"old{i} " * 92, i))
        driver.run()
    driver.feed(request(asked("complete", "typed " * 20), 9))
    driver.step()
    computed = sum(recorder.extended)
    driver.feed(say("no " * 40, 10))
    driver.step()
    driver.feed(control("drop", 10))
    driver.run()
    assert sum(recorder.extended) - computed < 40
    said = [words for role, words in history(driver) if role == "user"]
    assert [words.split()[0] for words in said[-2:]] == ["old8", "typed"]
    assert "no" not in " ".join(said).split()


def test_a_message_that_is_refused_does_not_log_the_numbers_of_the_one_before(driver, caplog):
    caplog.set_level("INFO", "dora_voice.llm")
    driver.feed(say("Hello there.", 1), played(1, 19, fin=True), say("word " * 2000, 2))
    driver.run()
    logged = [line for line in caplog.messages if line.startswith("turn ")]
    assert "generated=4" in logged[0]
    assert all("prefilled=0" in line and "generated=0" in line for line in logged[1:])
