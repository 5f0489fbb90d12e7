"""The stage, whatever makes its replies: order, interruption, what was heard."""

from __future__ import annotations

import pytest
from llm.recorder import Recorder, make_stage

from dora_voice.messages import Control, Played, Text
from dora_voice.testing import Driver
from dora_voice_llm import transcripts
from dora_voice_llm.config import Config
from dora_voice_llm.node import PORTS, build


def say(text, segment_id, session_id="a", seq=0, fin=True, **more):
    return Text(port="text", text=text, session_id=session_id, segment_id=segment_id, seq=seq, fin=fin, **more)


def control(verb, segment_id, session_id="a"):
    return Control(port="control", verb=verb, session_id=session_id, segment_id=segment_id, flush=verb == "flush")


def played(segment_id, text_end, fin=False, session_id="a"):
    return Played(
        port="played", samples=100 * text_end, text_end=text_end, session_id=session_id, segment_id=segment_id, fin=fin
    )


def text_of(messages, segment_id=None):
    return "".join(m.text for m in messages if segment_id in (None, m.segment_id))


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def driver(recorder):
    return Driver(make_stage(recorder), PORTS)


@pytest.fixture
def unheard(recorder):
    """The same without a speaker that reports."""
    return Driver(make_stage(recorder), PORTS, wired={"text", "control"})


def sent_words(driver, n):
    """Runs until n words were sent."""
    while len(driver.sent) < n:
        assert driver.step()


def test_a_reply_streams_with_spans_and_one_fin(driver):
    driver.feed(say("Count.", 1))
    sent = driver.run()
    assert text_of(sent) == "One two three four."
    assert [m.fin for m in sent] == [False] * 4 + [True]
    assert [m.seq for m in sent] == list(range(5))
    for m in sent:
        assert "One two three four."[m.text_start : m.text_end] == m.text


def test_fragments_make_one_transcript(driver, recorder):
    driver.feed(say("How ", 1, fin=False), say("are you?", 1, seq=1, fin=False), say("", 1, seq=2))
    driver.run()
    assert recorder.seen == [["How are you?"]]


@pytest.mark.parametrize(
    "transcript", [say("", 1, rejected="noise"), say(" \n", 1), say("Thank you.", 1, rejected="stock")]
)
def test_no_speech_gets_an_empty_reply_and_leaves_no_trace(driver, recorder, transcript):
    driver.feed(transcript)
    (fin,) = driver.run()
    assert (fin.text, fin.fin, fin.text_start, fin.text_end) == ("", True, 0, 0)
    driver.feed(say("Hello.", 2))
    driver.run()
    assert recorder.seen == [["Hello."]]


def test_the_next_turn_waits_until_the_reply_was_played(driver, recorder):
    driver.feed(say("One?", 1), say("Two?", 2))
    assert {m.segment_id for m in driver.run()} == {1}
    driver.feed(played(1, 7))
    assert driver.advance(60_000) == []
    driver.feed(played(1, 19, fin=True))
    assert text_of(driver.run(), 2) == "One two three four."
    assert recorder.seen[1] == ["One?", "One two three four.", "Two?"]


def test_without_a_speaker_that_reports_nothing_is_waited_for(unheard, recorder):
    unheard.feed(say("One?", 1), say("Two?", 2))
    assert {m.segment_id for m in unheard.run()} == {1, 2}
    assert recorder.seen[1] == ["One?", "One two three four.", "Two?"]


def test_a_flush_closes_the_reply_and_the_history_keeps_what_was_heard(driver, recorder):
    driver.feed(say("Count.", 1))
    sent_words(driver, 3)
    driver.feed(played(1, 5), control("flush", 2), say("Stop.", 2))
    assert driver.run() == []
    driver.feed(played(1, 8, fin=True))
    driver.run()
    assert recorder.seen[1] == ["Count.", "One two", "Stop."]


def test_the_last_report_of_a_flushed_reply_is_waited_for_200_ms(driver, recorder):
    driver.feed(say("Count.", 1))
    driver.run()
    driver.feed(played(1, 3), control("flush", 2), say("Stop.", 2))
    assert driver.advance(199) == []
    driver.advance(1)
    driver.feed(played(1, 19, fin=True))
    driver.run()
    assert recorder.seen[1] == ["Count.", "One", "Stop."]


def test_messages_that_wake_the_wait_do_not_lengthen_it(driver, recorder):
    driver.feed(say("Count.", 1))
    driver.run()
    driver.feed(control("flush", 2), say("Stop.", 2))
    for _ in range(3):
        assert driver.advance(60) == []
        driver.feed(played(1, 3))
    assert driver.advance(21) != []
    assert recorder.seen[1] == ["Count.", "One", "Stop."]


def test_a_flush_without_any_reply_yet_keeps_what_the_user_said(driver, recorder):
    driver.feed(say("One?", 1))
    driver.run()
    driver.feed(say("Two?", 2))
    driver.run()
    driver.feed(control("flush", 3), played(1, 3, fin=True), say("Three?", 3))
    driver.run()
    assert recorder.seen[1] == ["One?", "One", "Two? Three?"]


def test_a_dropped_segment_never_happened(driver, recorder):
    driver.feed(say("How is", 1))
    sent_words(driver, 2)
    driver.feed(control("drop", 1), say("How is the sea?", 2))
    assert text_of(driver.run(), 2) == "One two three four."
    assert recorder.seen[1] == ["How is the sea?"]


def test_a_transcript_that_was_flushed_or_dropped_half_way_is_forgotten(driver, recorder):
    driver.feed(say("Old ", 1, fin=False), say("half ", 2, fin=False))
    driver.run()
    driver.feed(control("flush", 2), control("drop", 2), say("New.", 3))
    driver.run()
    assert recorder.seen == [["New."]]


def test_a_broken_reply_ends_its_segment_and_the_next_is_served(driver, recorder):
    driver.feed(say("Please break.", 1))
    fin = driver.run()[-1]
    assert fin.fin
    assert "the model broke" in fin.error
    driver.feed(played(1, 3, fin=True), say("Again.", 2))
    assert text_of(driver.run()) == "One two three four."
    assert recorder.seen[1] == ["Please break.", "One", "Again."]


def test_an_error_from_before_passes_by(driver, recorder):
    driver.feed(say("Hel", 1, fin=False), say("", 1, seq=1, error="crash: gone"), say("Hello.", 2))
    driver.run()
    assert driver.sent[0].error == "crash: gone"
    assert recorder.seen == [["Hello."]]


def test_end_forgets_the_session_and_only_that(unheard, recorder):
    unheard.feed(say("A.", 1), say("B.", 1, "b"))
    unheard.run()
    unheard.feed(control("end", 1))
    unheard.run()
    unheard.feed(say("A again.", 2), say("B again.", 2, "b"))
    unheard.run()
    assert recorder.seen[2:] == [["A again."], ["B.", "One two three four.", "B again."]]


def test_finish_comes_behind_the_last_reply(unheard):
    unheard.feed(say("Bye.", 1), Text(port="text", text="", session_id="a", segment_id=1, finish=True))
    sent = unheard.run()
    assert [m.finish for m in sent if m.port == "text"] == [False] * 5 + [True]
    assert [m.finish for m in sent if m.port == "result"] == [True]


def test_sessions_stream_side_by_side(unheard):
    unheard.feed(say("A.", 1), say("B.", 1, "b"))
    unheard.run()
    assert [m.session_id for m in unheard.sent[:4]] == ["a", "b", "a", "b"]


def test_a_session_too_many_is_refused_and_gets_in_when_another_has_ended(recorder):
    driver = Driver(make_stage(recorder, most_sessions=2), PORTS, wired={"text", "control"})
    for name in "abc":
        driver.feed(say("Hi.", 1, name))
    driver.run()
    (fin,) = [m for m in driver.sent if m.port == "text" and m.session_id == "c"]
    assert fin.fin
    assert "session c: there are 2 already" in str(fin.error)
    driver.feed(control("end", 1, "a"), say("Hi.", 2, "c"))
    driver.run()
    assert driver.sent[-1].error is None


def test_a_session_that_is_not_used_for_long_is_ended(recorder, caplog):
    driver = Driver(make_stage(recorder, most_sessions=1, idle_s=60), PORTS, wired={"text", "control"})
    caplog.set_level("INFO")
    driver.feed(say("Hi.", 1, "a"))
    driver.advance(60_001)
    driver.feed(say("Hello.", 1, "b"))
    driver.run()
    assert recorder.seen == [["Hi."], ["Hello."]]
    assert "session=a: not used for 60 s, ended" in caplog.text


def test_a_transcript_without_end_is_cut(unheard, recorder, monkeypatch, caplog):
    monkeypatch.setattr(transcripts, "MOST_CHARS", 10)
    unheard.feed(say("12345678", 1, fin=False), say("90abcdef", 1, seq=1, fin=False), say("gh", 1, seq=2))
    unheard.run()
    assert recorder.seen == [["1234567890"]]
    assert caplog.text.count("transcript cut to 10 characters") == 1


def test_unfinished_transcripts_do_not_pile_up(unheard, recorder, monkeypatch):
    monkeypatch.setattr(transcripts, "MOST_OPEN", 2)
    for i in range(3):
        unheard.feed(say("begun ", i, f"s{i}", fin=False))
    unheard.run()
    unheard.feed(say("done", 0, "s0", seq=1), say("done", 1, "s1", seq=1))
    unheard.run()
    assert recorder.seen == [["done"], ["begun done"]]


@pytest.mark.parametrize(
    ("user", "reply"), [("Hello there", "You said: Hello there."), ("Really?", "You said: Really?")]
)
def test_the_fake_backend_echoes(user, reply):
    driver = Driver(build(Config(backend="fake")), PORTS)
    driver.feed(say(user, 1))
    sent = driver.run()
    assert text_of(sent) == reply
    assert len(sent) == len(reply.split()) + 1


def test_the_fake_backend_tells_a_story_long_enough_to_interrupt():
    driver = Driver(build(Config(backend="fake")), PORTS)
    driver.feed(say("Tell me a STORY!", 1))
    assert len(text_of(driver.run()).split()) > 60


def test_what_the_user_said_in_a_segment_that_was_flushed_in_the_queue_is_remembered():
    recorder = Recorder()
    driver = Driver(make_stage(recorder), PORTS)
    driver.feed(say("first question", 1), control("flush", 2), say("second", 2))
    driver.feed(say("dropped", 3), control("drop", 3))
    driver.run()
    driver.feed(control("flush", 4), say("fourth", 4))
    driver.advance(300)
    assert recorder.seen == [["first question second"], ["first question second fourth"]]


def test_a_speaker_that_is_gone_holds_nobody_up():
    recorder = Recorder()
    driver = Driver(make_stage(recorder), PORTS)
    driver.feed(say("one", 1))
    driver.run()
    driver.feed(Played(port="played", samples=1, text_end=3, session_id="a", segment_id=1), say("two", 2))
    assert driver.run() == []
    driver.intake.restarted(["played"], "speaker")
    driver.run()
    driver.intake.closed("played")
    driver.feed(say("three", 3))
    driver.run()
    assert recorder.seen == [["one"], ["one", "One", "two"], ["one", "One", "two three"]]
    driver.feed(say("four", 4))
    driver.run()
    assert recorder.seen[-1][-2:] == ["One two three four.", "four"], "now all that was sent counts as heard"
