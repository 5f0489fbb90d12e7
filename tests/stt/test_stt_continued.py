"""An utterance that goes on after it was taken for ended is transcribed as one, from its first sample."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from stt.dictation import Listener, control, speech, texts

from dora_voice.testing import Driver, tone
from dora_voice_stt.node import PORTS
from dora_voice_stt.stage import SttStage


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def driver(listener: Listener) -> Driver:
    return Driver(SttStage(listener, longest_utterance_s=2), PORTS)


@pytest.mark.parametrize("had_ended", [True, False])
def test_the_next_segment_goes_on_where_the_dropped_one_was(
    driver: Driver, listener: Listener, had_ended: bool
) -> None:
    driver.feed(speech(tone(100), fin=had_ended))
    driver.run()
    driver.feed(control("drop", 1), speech(tone(50), segment_id=2, continues=1))
    driver.feed(speech(tone(50), segment_id=2, seq=1, fin=True))
    driver.run()
    np.testing.assert_array_equal(listener.heard[-1], np.concatenate([tone(100), tone(50), tone(50)]))


@pytest.mark.parametrize("is_noticed_first", [True, False])
def test_speech_that_the_drop_overtakes_is_not_lost(driver: Driver, listener: Listener, is_noticed_first: bool) -> None:
    driver.feed(speech(tone(100)))
    driver.run()
    queued, drop = speech(tone(50), seq=1), control("drop", 1)
    driver.feed(*((drop, queued) if is_noticed_first else (queued, drop)))
    driver.feed(speech(tone(50), segment_id=2, continues=1, fin=True))
    driver.run()
    assert len(listener.heard[-1]) == 200 * 16


def test_a_segment_that_continues_nothing_known_stands_alone(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(tone(100), session_id="b", fin=True), speech(tone(50), segment_id=2, continues=1, fin=True))
    driver.run()
    assert len(listener.heard[-1]) == 800


def test_a_soft_end_gives_a_transcript_that_may_be_taken_back(driver: Driver) -> None:
    driver.feed(speech(tone(100), speculative=True), speech(tone(50), seq=1, fin=True, speculative=True))
    assert [(text.port, text.fin, text.speculative) for text in texts(driver.run())] == [("text", True, True)]


def test_a_soft_end_that_was_committed_meanwhile_is_none(driver: Driver) -> None:
    driver.feed(speech(tone(100), fin=True, speculative=True), control("commit", 1))
    assert [text.speculative for text in texts(driver.run())] == [False]


@pytest.mark.parametrize("committed", [False, True], ids=["soft ends", "turns that are reopened"])
def test_an_utterance_may_be_taken_up_again_and_again(driver: Driver, listener: Listener, committed: bool) -> None:
    said = [tone(100, 300), tone(80, 400), tone(60, 500), tone(40, 600)]
    for segment_id, samples in enumerate(said, 1):
        if segment_id > 1:
            driver.feed(control("drop", segment_id - 1))
        continued = segment_id - 1 or None
        driver.feed(speech(samples, segment_id, fin=True, speculative=not committed, continues=continued))
        if committed:
            driver.feed(control("commit", segment_id))
        assert [text.segment_id for text in texts(driver.run())] == [segment_id]
        np.testing.assert_array_equal(listener.heard[-1], np.concatenate(said[:segment_id]))


def test_the_drop_may_come_after_what_continues(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(tone(100), fin=True))
    driver.run()
    driver.feed(speech(tone(50), segment_id=2, continues=1), control("drop", 1))
    driver.run()
    driver.feed(speech(tone(50), segment_id=2, seq=1, fin=True))
    driver.run()
    assert len(listener.heard[-1]) == 3_200


@pytest.mark.parametrize("had_begun", [True, False])
def test_speech_that_was_under_way_when_it_was_dropped_is_part_of_it(
    driver: Driver, listener: Listener, had_begun: bool
) -> None:
    stage = driver.stage
    assert isinstance(stage, SttStage)
    if had_begun:
        driver.feed(speech(tone(100)))
        driver.run()
    driver.feed(control("drop", 1))
    driver.run()
    stage.late(speech(tone(50, 300), seq=1))
    stage.late(speech(tone(50, 500), seq=2, fin=True))
    driver.feed(speech(tone(50), segment_id=2, continues=1, fin=True))
    driver.run()
    begin = [tone(100)] if had_begun else []
    np.testing.assert_array_equal(listener.heard[-1], np.concatenate([*begin, tone(50, 300), tone(50, 500), tone(50)]))


def test_what_continues_a_dropped_segment_may_flush_the_rest(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(tone(100)))
    driver.run()
    driver.feed(control("drop", 1), control("flush", 2), speech(tone(50), segment_id=2, continues=1, fin=True))
    driver.run()
    assert len(listener.heard[-1]) == 2_400


def test_a_false_alarm_that_would_have_continued_it_is_no_part_of_it(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(tone(100), fin=True), control("commit", 1))
    driver.run()
    driver.feed(speech(tone(30), segment_id=2, continues=1))
    driver.run()
    driver.feed(control("drop", 2))
    driver.run()
    driver.feed(speech(tone(50), segment_id=3, continues=1, fin=True), control("drop", 1))
    driver.run()
    assert len(listener.heard[-1]) == 150 * 16


def test_a_false_alarm_in_between_is_no_part_of_it(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(tone(100), fin=True), control("commit", 1))
    driver.run()
    driver.feed(speech(tone(30), segment_id=2))
    driver.run()
    driver.feed(control("drop", 2), control("drop", 1), speech(tone(50), segment_id=3, continues=1, fin=True))
    driver.run()
    assert len(listener.heard[-1]) == 2_400


def test_only_the_last_that_happened_is_kept_to_be_reopened(driver: Driver, listener: Listener) -> None:
    driver.feed(*(speech(tone(100), segment_id, fin=True) for segment_id in (1, 2, 3)))
    driver.run()
    driver.feed(speech(tone(50), segment_id=4, continues=1, fin=True))
    driver.run()
    assert len(listener.heard[-1]) == 800


def test_the_limit_holds_over_all_of_it(driver: Driver, listener: Listener, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for segment_id in (1, 2, 3):
            driver.feed(control("drop", segment_id - 1))
            driver.feed(speech(tone(900), segment_id, fin=True, continues=segment_id - 1))
            driver.run()
    assert [len(heard) for heard in listener.heard] == [14_400, 28_800, 32_000]
    assert "segment=3 is longer than MAX_UTTERANCE_S=2: dropped its last 700 ms" in caplog.text


def test_a_false_alarm_that_is_dropped_too_late_is_no_reason_to_forget(driver: Driver, listener: Listener) -> None:
    """The drop of what both continue overtakes the sound of the false alarm, because the recogniser is slow."""
    driver.feed(speech(tone(100), fin=True), control("commit", 1))
    driver.run()
    driver.feed(control("drop", 1))
    driver.run()
    driver.feed(speech(tone(30), segment_id=2, continues=1))
    driver.run()
    driver.feed(control("drop", 2), speech(tone(50), segment_id=3, continues=1, fin=True))
    driver.run()
    assert len(listener.heard[-1]) == 150 * 16


def test_what_could_not_be_transcribed_can_still_be_continued(driver: Driver, listener: Listener) -> None:
    listener.is_broken = True
    driver.feed(speech(tone(100), fin=True))
    driver.run()
    listener.is_broken = False
    driver.feed(control("drop", 1), speech(tone(50), segment_id=2, continues=1, fin=True))
    driver.run()
    assert len(listener.heard[-1]) == 150 * 16
