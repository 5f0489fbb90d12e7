"""Every race as a list of events, on a sample clock."""

import numpy as np
import pyarrow as pa

from dora_voice.messages import Control, Message, Played, Text
from dora_voice.stage import Ports, Wait
from dora_voice.testing import Driver

PORTS = Ports(
    inputs={"text": Text, "control": Control, "played": Played},
    outputs={"text": Text},
    reply="text",
    feedback=frozenset({"played"}),
    ends_with=("text",),
)


class Words:
    """Says a text back word by word."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def process(self, message: Message):
        if not isinstance(message, Text):
            self.events.append(message)
            return
        try:
            for word in message.text.split():
                if word == "wait":
                    self.events.append((yield Wait(100)))
                    continue
                if word == "crash":
                    raise RuntimeError("told to")
                yield Text(port="text", text=word)
            if message.fin:
                yield Text(port="text", text="", fin=True)
        except GeneratorExit:
            self.events.append(f"closed {message.segment_id}")
            raise

    def flushed(self, segment):
        self.events.append(("flushed", segment))

    def dropped(self, segment):
        self.events.append(("dropped", segment))

    def failed(self, segment):
        self.events.append(("failed", segment))

    def ended(self, session_id):
        self.events.append(("ended", session_id))


def said(messages):
    return [m.text for m in messages if isinstance(m, Text) and not m.fin]


def text(text, segment_id=1, session_id="a", **keys):
    return Text(port="text", text=text, session_id=session_id, segment_id=segment_id, fin=True, **keys)


def control(verb, segment_id, session_id="a"):
    return Control(port="control", verb=verb, session_id=session_id, segment_id=segment_id, flush=verb == "flush")


def test_a_segment_is_answered_with_numbered_fragments_and_one_fin():
    driver = Driver(Words(), PORTS)
    driver.feed(text("one two", speculative=True))
    sent = driver.run()
    assert [(m.text, m.seq, m.fin, m.session_id, m.segment_id) for m in sent] == [
        ("one", 0, False, "a", 1),
        ("two", 1, False, "a", 1),
        ("", 2, True, "a", 1),
    ]
    assert all(m.speculative for m in sent)


def test_a_flush_closes_the_running_segment_at_its_next_yield_and_the_carrier_is_served():
    stage = Words()
    driver = Driver(stage, PORTS)
    driver.feed(text("one two three", 1))
    driver.step()
    driver.feed(control("flush", 2), text("four", 2))
    assert said(driver.run()) == ["four"]
    assert stage.events[:2] == ["closed 1", ("flushed", ("a", 2))]


def test_a_drop_closes_exactly_that_segment_even_when_it_waits():
    stage = Words()
    driver = Driver(stage, PORTS)
    driver.feed(text("wait one", 3))
    driver.run()
    driver.feed(control("drop", 3))
    assert said(driver.run()) == []
    driver.feed(text("old", 2), text("late", 3), text("new", 4))
    assert said(driver.run()) == ["old", "new"]


def test_another_session_is_not_touched_by_a_flush_and_gets_its_turns_in_between():
    driver = Driver(Words(), PORTS)
    driver.feed(text("1 2 3", 1, "a"), text("x y z", 1, "b"))
    for _ in range(3):
        driver.step()
    driver.feed(control("flush", 9, "a"))
    driver.run()
    assert [(m.session_id, m.text) for m in driver.sent if not m.fin] == [
        ("a", "1"), ("b", "x"), ("a", "2"), ("b", "y"), ("b", "z"),
    ]  # fmt: skip


def test_an_exception_ends_its_segment_with_fin_and_error_and_the_next_one_is_served(caplog):
    stage = Words()
    driver = Driver(stage, PORTS)
    driver.feed(text("one crash two", 1), text("three", 2))
    sent = driver.run()
    assert [(m.text, m.fin, m.error) for m in sent] == [
        ("one", False, None),
        ("", True, "RuntimeError: told to"),
        ("three", False, None),
        ("", True, None),
    ]
    assert "Traceback" in caplog.text
    assert ("failed", ("a", 1)) in stage.events


def test_an_error_from_before_is_passed_on_without_bothering_the_stage():
    driver = Driver(Words(), PORTS)
    driver.feed(text("half", 1, error="gone: node stt crashed"))
    assert [(m.text, m.fin, m.error) for m in driver.run()] == [("", True, "gone: node stt crashed")]


def test_a_wait_ends_by_time_and_by_any_other_message_and_tells_what_was_left():
    stage = Words()
    driver = Driver(stage, PORTS)
    driver.feed(text("wait one", 1))
    driver.advance(40)
    driver.feed(Played(port="played", samples=5, session_id="b", segment_id=1))
    assert said(driver.run()) == ["one"]
    assert np.isclose(stage.events[-1], 60)
    driver.feed(text("wait two", 2))
    assert said(driver.advance(99)) == []
    assert said(driver.advance(1)) == ["two"]
    assert stage.events[-1] == 0.0


def test_finish_is_forwarded_behind_everything_and_the_session_is_forgotten():
    stage = Words()
    driver = Driver(stage, PORTS)
    driver.feed(text("wait one", 1), Text(port="text", text="", session_id="a", finish=True))
    assert driver.run() == []
    sent = driver.advance(100)
    assert [(m.text, m.fin, m.finish) for m in sent] == [("one", False, False), ("", True, False), ("", False, True)]
    assert stage.events[-1] == ("ended", "a")


def test_inputs_that_end_without_finish_finish_every_session():
    driver = Driver(Words(), PORTS)
    driver.feed(text("one", 1, "a"), text("two", 1, "b"))
    driver.run()
    assert [(m.session_id, m.finish) for m in driver.end_inputs()] == [("a", True), ("b", True)]


def test_end_forgets_the_session_at_once_and_its_ids_may_start_anew():
    stage = Words()
    driver = Driver(stage, PORTS)
    driver.feed(text("one two", 7))
    driver.step()
    driver.feed(control("end", 7))
    assert driver.run() == []
    assert stage.events == ["closed 7", ("ended", "a"), *stage.events[2:]]
    driver.feed(text("three", 1))
    assert said(driver.run()) == ["three"]


def test_texts_of_a_node_that_knows_nothing_of_the_contract_are_segments_of_their_own():
    driver = Driver(Words(), PORTS)
    driver.feed_raw("text", pa.array(["one two"]))
    driver.feed_raw("text", pa.array(["three"]), session_id=5, unknown={"a": 1})
    driver.feed_raw("text", pa.array(["four"]), fin=True)
    driver.run()
    assert [(m.session_id, m.segment_id, m.text) for m in driver.sent if m.text] == [
        ("default", 1, "one"), ("5", 1, "three"), ("default", 1, "two"), ("default", 2, "four"),
    ]  # fmt: skip


def test_a_flush_without_ids_kills_what_came_before_it_on_that_input_and_serves_its_carrier():
    driver = Driver(Words(), PORTS)
    driver.feed(text("one two three", 4, "a"), text("x y", 2, "default"))
    driver.step()
    driver.feed_raw("text", pa.array(["now"]), flush="TRUE")
    assert [(m.session_id, m.segment_id, m.text) for m in driver.run() if m.text] == [("default", 3, "now")]


def test_lost_fragments_are_reported_with_their_numbers(caplog):
    driver = Driver(Words(), PORTS)
    driver.feed(Text(port="text", text="a", session_id="a", segment_id=1, seq=0))
    driver.feed(Text(port="text", text="b", session_id="a", segment_id=1, seq=4, fin=True))
    assert "session=a segment=1: seq 1 to 3 never came" in caplog.text


def test_a_crashed_producer_leaves_an_error_where_its_segment_was_open():
    driver = Driver(Words(), PORTS)
    driver.feed(Text(port="text", text="a", session_id="a", segment_id=1, seq=0))
    driver.run()
    driver.intake.restarted({"text"}, "stt")
    sent = driver.run()
    assert [(m.fin, m.error) for m in sent][-1] == (True, "restarted: node stt crashed")


def test_what_a_crashed_vad_had_begun_is_not_taken_back_any_more():
    driver = Driver(Words(), PORTS)
    driver.feed(control("start", 1), control("commit", 1), control("start", 2), control("drop", 2), control("start", 3))
    driver.feed(text("three", 3, speculative=True))
    driver.step()
    driver.intake.restarted({"control"}, "vad")
    sent = driver.run()
    assert {m.segment_id for m in sent} == {3}
    assert (sent[-1].fin, sent[-1].speculative) == (True, False)


def test_a_segment_whose_beginning_went_down_with_this_node_ends_with_an_error():
    driver = Driver(Words(), PORTS, restarts=1)
    driver.feed(
        *(Text(port="text", text="x", session_id="a", segment_id=1, seq=seq, fin=seq == 5) for seq in (3, 4, 5))
    )
    driver.feed(text("two", 2))
    sent = driver.run()
    assert [(m.segment_id, m.error) for m in sent if m.fin] == [(1, "restarted: node crashed"), (2, None)]
    assert [m.text for m in sent if m.segment_id == 1] == [""]


def test_a_crashed_speaker_ends_what_it_was_playing():
    stage = Words()
    driver = Driver(stage, PORTS)
    driver.feed(Played(port="played", samples=5, session_id="a", segment_id=1, seq=0))
    driver.run()
    driver.intake.restarted({"played"}, "speaker")
    driver.run()
    assert [(m.samples, m.fin) for m in stage.events] == [(5, False), (0, True)]


def test_a_full_queue_drops_what_comes_counts_it_and_says_so(caplog):
    driver = Driver(Words(), PORTS)
    driver.intake._most_queued_bytes = 1000
    for seq in range(20):
        driver.feed(Text(port="text", text="x" * 100, session_id="a", segment_id=1, seq=seq))
    assert driver.intake.counts["overflow"] == 18
    assert "queue full" in caplog.text
    driver.feed(text("y", 2))
    assert said(driver.run())[-1] == "y", "what ends a segment is let in all the same"


def test_what_is_served_makes_room():
    driver = Driver(Words(), PORTS)
    driver.intake._most_queued_bytes = 1000
    for n in range(50):
        driver.feed(Text(port="text", text="x" * 100, session_id="a", segment_id=1, seq=n))
        driver.run()
    assert not driver.intake.counts


def test_what_is_played_after_the_session_has_finished_is_nothing_new(caplog):
    driver = Driver(Words(), PORTS)
    playing = [Played(port="played", samples=n, session_id="a", segment_id=1, seq=n) for n in range(4)]
    driver.feed(text("one", 1), *playing[:2], Text(port="text", text="", session_id="a", finish=True))
    driver.run()
    driver.feed(*playing[2:])
    driver.run()
    assert not driver.intake.counts
    assert not caplog.records


def test_a_segment_that_its_producer_leaves_open_ends_with_an_error_and_only_once():
    driver = Driver(Words(), PORTS)
    for segment_id in (1, 2):
        driver.feed(Text(port="text", text="a", session_id="a", segment_id=segment_id, seq=0))
    driver.feed(control("drop", 2), Text(port="text", text="", session_id="a", finish=True))
    ends = [(m.segment_id, m.fin, m.error, m.finish) for m in driver.run() if m.fin or m.finish]
    assert ends == [(1, True, "incomplete: the session finished before its fin", False), (None, False, None, True)]
    driver.feed(Text(port="text", text="a", session_id="b", segment_id=1, seq=0))
    driver.run()
    assert [m.error for m in driver.end_inputs() if m.fin] == ["closed: its producer has ended"]


def test_end_takes_what_came_before_it_and_leaves_what_comes_after():
    driver = Driver(Words(), PORTS)
    driver.feed(text("old", 1), control("end", 1), text("new", 1))
    assert said(driver.run()) == ["new"]
    assert not driver.intake._queued_bytes


def test_finish_is_not_lost_with_the_dead_message_that_carries_it():
    for flush_first in (True, False):
        driver = Driver(Words(), PORTS)
        news = [control("flush", 2), text("one two", 1, finish=True)]
        driver.feed(*(news if flush_first else news[::-1]))
        assert [m.finish for m in driver.run()] == [True]
    driver = Driver(Words(), PORTS)
    driver.feed(text("one two", 1, finish=True))
    driver.step()
    driver.feed(control("flush", 2))
    assert [m.finish for m in driver.run()] == [True]


def test_feedback_that_is_lost_is_told_to_the_stage():
    stage = Words()
    stage.lost = lambda *what: stage.events.append(what)
    driver = Driver(stage, PORTS)
    driver.intake.restarted(["played"], "speaker")
    driver.intake.closed("played")
    driver.run()
    assert stage.events == [("played", False), ("played", True)]


def test_a_message_that_cannot_be_written_uses_no_number():
    class Wrong:
        def process(self, message: Message):
            yield Text(port="text", text="good")
            yield Text(port="text", text="bad", text_start=-1)

    driver = Driver(Wrong(), PORTS)
    driver.feed(text("x"))
    assert [(m.seq, m.fin) for m in driver.run()] == [(0, False), (1, True)]


def test_a_session_finishes_once_whatever_was_left_open_in_it():
    for news in (control("flush", 2), control("drop", 1)):
        driver = Driver(Words(), PORTS)
        driver.feed(Text(port="text", text="half", session_id="a", segment_id=1, seq=0), news)
        driver.feed(text("two", 2), Text(port="text", text="", session_id="a", finish=True))
        driver.run()
        driver.end_inputs()
        assert [m.finish for m in driver.sent].count(True) == 1
        assert driver.sent[-1].finish


def test_nothing_comes_out_behind_finish():
    driver = Driver(Words(), PORTS)
    driver.feed(Text(port="text", text="half", session_id="a", segment_id=1, seq=0), text("two", 2, finish=True))
    driver.run()
    driver.intake.restarted(["text"], "stt")
    driver.end_inputs()
    assert {m.segment_id for m in driver.sent if m.fin} == {1, 2}
    assert [m.finish for m in driver.sent].count(True) == 1
    assert driver.sent[-1].finish


def test_finish_gets_through_on_a_message_that_comes_too_late():
    driver = Driver(Words(), PORTS)
    driver.feed(Text(port="text", text="half", session_id="a", segment_id=1, seq=0))
    driver.intake.restarted(["text"], "stt")
    driver.feed(Text(port="text", text="rest", session_id="a", segment_id=1, seq=1, fin=True, finish=True))
    assert driver.run()[-1].finish


def test_a_finished_session_may_come_again():
    driver = Driver(Words(), PORTS)
    for _ in range(2):
        driver.feed(text("one", 1), Text(port="text", text="", session_id="a", finish=True))
        assert [m.text for m in driver.run() if m.text] == ["one"]


CONCURRENT = Ports(
    inputs={"text": Text, "guess": Text, "request": Text},
    outputs={"text": Text, "result": Text},
    reply="text",
    feedback=frozenset({"guess"}),
    ends_with=("text",),
    concurrent=frozenset({"request"}),
)


class Asked:
    """Serves a request in three steps; says a text back, breaks at a guess."""

    def process(self, message: Message):
        assert isinstance(message, Text)
        if message.port == "guess":
            raise RuntimeError("can't guess")
        if message.port == "text":
            yield Text(port="text", text=message.text, fin=True)
            return
        for step in "123":
            yield Text(port="result", text=f"{message.text}{step}", fin=step == "3")


def results(driver):
    return [(m.segment_id, m.text) for m in driver.sent if m.port == "result"]


def test_requests_of_one_session_do_not_wait_for_each_other():
    driver = Driver(Asked(), CONCURRENT)
    driver.feed_raw("request", "a", session_id="s", segment_id="1")
    driver.feed_raw("request", "b", session_id="s", segment_id="2")
    driver.run()
    assert results(driver) == [(1, "a1"), (2, "b1"), (1, "a2"), (2, "b2"), (1, "a3"), (2, "b3")]
    assert driver.scheduler.is_idle


def test_a_request_without_ids_is_a_segment_of_its_own_and_so_is_the_text_after_it():
    driver = Driver(Asked(), CONCURRENT)
    driver.feed_raw("text", "hello", session_id="s", segment_id="5")
    driver.feed_raw("request", "a", session_id="s")
    driver.feed_raw("request", "b", session_id="s")
    driver.feed_raw("text", "again", session_id="s")
    driver.run()
    assert {segment_id for segment_id, _ in results(driver)} == {6, 7}
    assert [(m.segment_id, m.text) for m in driver.sent if m.port == "text"] == [(5, "hello"), (8, "again")]


def test_the_first_request_of_a_session_is_its_first_segment():
    driver = Driver(Asked(), CONCURRENT)
    driver.feed_raw("request", "a")
    driver.run()
    assert {segment_id for segment_id, _ in results(driver)} == {1}


def test_a_request_about_a_segment_that_is_over_is_served():
    driver = Driver(Asked(), CONCURRENT)
    driver.feed_raw("text", "hello", session_id="s", segment_id="1")
    driver.feed_raw("request", "a", session_id="s", segment_id="1")
    driver.run()
    assert results(driver)[-1] == (1, "a3")


def test_what_fails_on_feedback_ends_no_segment(caplog):
    driver = Driver(Asked(), CONCURRENT)
    driver.feed_raw("guess", "hel", session_id="s", segment_id="1")
    driver.feed_raw("guess", "", session_id="s", segment_id="1", error="crash: gone", fin="true")
    driver.feed_raw("text", "hello", session_id="s", segment_id="1")
    driver.run()
    assert [(m.text, m.error) for m in driver.sent] == [("hello", None)]
    assert "can't guess" in caplog.text


class Errands:
    """Sends what another thread leaves in its box."""

    def __init__(self) -> None:
        self.box: list[str] = []

    def started(self, surroundings):
        self.wake = surroundings.wake

    def process(self, message: Message):
        return None

    def run(self):
        while True:
            while self.box:
                yield Text(port="text", session_id="a", segment_id=1, text=self.box.pop(0))
            yield Wait()


def test_what_waits_is_woken_by_another_thread_without_a_message():
    stage = Errands()
    driver = Driver(stage, PORTS)
    driver.run()
    stage.box.append("one")
    assert said(driver.run()) == []
    stage.wake()
    assert said(driver.run()) == ["one"]
