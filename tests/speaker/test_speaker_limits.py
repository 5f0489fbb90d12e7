"""Whatever comes, and whatever doesn't, the speaker's memory has a limit, and a reply ends once."""

from __future__ import annotations

import numpy as np
import pytest

from dora_voice.messages import Audio, Control, Played
from dora_voice.testing import Driver
from dora_voice_speaker.backends import NullSpeaker
from dora_voice_speaker.node import PORTS
from dora_voice_speaker.playback import LONGEST_STARVING, MOST_REMEMBERED, MOST_REPLIES, Playback, Report
from dora_voice_speaker.stage import MOST_SESSIONS, SpeakerStage


@pytest.fixture
def one() -> Playback:
    return Playback(longest_pause_samples=10**9, longest_queue_samples=10**9)


@pytest.fixture
def driver() -> Driver:
    return Driver(SpeakerStage(NullSpeaker(), is_fast=False, longest_pause_ms=4000, longest_queue_s=60), PORTS)


def add(one: Playback, segment_id: int, samples: int, text_end: int | None = None, fin: bool = False) -> None:
    one.add(segment_id, np.ones(samples, np.float32), text_end, fin=fin, speculative=False)


def reports(one: Playback) -> list[Report]:
    return list(iter(one.next_report, None))


def audio(session_id: str, segment_id: int, samples: int = 240, fin: bool = False) -> Audio:
    sound = np.ones(samples, np.float32)
    return Audio(port="audio", samples=sound, sample_rate=16_000, session_id=session_id, segment_id=segment_id, fin=fin)


def test_a_reply_that_was_given_up_does_not_come_back(one: Playback) -> None:
    add(one, 1, 2400)
    add(one, 2, 2400, fin=True)
    one.play(2 * 2400 + LONGEST_STARVING + 1)
    one.play(2400)
    assert [(report.segment_id, report.samples) for report in reports(one) if report.is_last] == [(1, 2400), (2, 2400)]
    add(one, 1, 2400)
    add(one, 1, 2400, fin=True)
    assert not one.play(5000).any()
    assert reports(one) == []
    assert one.dropped == {"the reply is over": 4800}


def test_what_is_remembered_of_replies_that_are_over_has_a_limit(one: Playback) -> None:
    for segment_id in range(MOST_REMEMBERED + 9):
        add(one, segment_id, 1, fin=True)
        one.play(1)
    assert list(one._over) == list(range(9, MOST_REMEMBERED + 9))


def test_replies_without_an_end_do_not_pile_up_and_one_too_many_has_ended_unheard(one: Playback) -> None:
    for segment_id in range(3000):
        add(one, segment_id, 1, text_end=4)
    assert len(one._replies) == MOST_REPLIES
    assert reports(one) == [Report(segment_id, 0, 0, is_last=True) for segment_id in range(MOST_REPLIES, 3000)]
    assert one.dropped == {"256 replies wait": 3000 - MOST_REPLIES}


def test_a_session_of_replies_without_an_end_costs_one_log_line(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.feed(*(audio("a", segment_id) for segment_id in range(3000)))
    driver.run()
    assert caplog.messages == ["session=a segment=256: audio is dropped: 256 replies wait"]


def test_sessions_without_an_end_are_cut_when_they_are_too_many_and_the_one_that_is_heard_goes_on(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(600):
        driver.feed(audio("heard", 1), audio(str(number), 1))
        driver.run()
    kept = driver.stage._playbacks
    assert list(kept) == [*(str(number) for number in range(601 - MOST_SESSIONS, 599)), "heard", "599"]
    assert kept["heard"].queued + 960 > 600 * 360 > kept["heard"].queued
    assert caplog.messages == ["session=0: cut, 256 are the most at once (1 cut so far)"]


def test_a_session_that_is_cut_while_it_finishes_has_finished(driver: Driver) -> None:
    driver.feed(
        Control(port="control", verb="pause", session_id="a", segment_id=1),
        audio("a", 1, 48_000, fin=True),
        Audio(port="audio", samples=np.zeros(0, np.float32), sample_rate=24_000, session_id="a", finish=True),
    )
    driver.run()
    driver.feed(*(audio(str(number), 1, 48_000) for number in range(MOST_SESSIONS)))
    (last,) = [sent for sent in driver.advance(100) if sent.finish]
    assert last.session_id == "a"


def test_where_all_sessions_play_one_more_is_told_that_nothing_of_its_reply_is_heard(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.feed(*(audio(str(number), 1, 48_000) for number in range(MOST_SESSIONS)))
    driver.run()
    driver.feed(audio("late", 1, 4800), audio("late", 1, 4800, fin=True))
    (told,) = [sent for sent in driver.run() if sent.segment.session_id == "late"]
    assert isinstance(told, Played)
    assert (told.samples, told.fin) == (0, True)
    assert caplog.messages == ["session=late segment=1: not played, 256 sessions play"]
    driver.advance(10_000)
    # There would be room by now, but its reply has ended.
    driver.feed(audio("late", 1, 4800, fin=True))
    assert not [sent for sent in driver.advance(500) if sent.segment.session_id == "late"]
    driver.feed(audio("late", 2, 4800, fin=True))
    assert [sent.fin for sent in driver.advance(500) if sent.segment.session_id == "late"][-1]


def test_the_replies_of_a_session_that_makes_room_have_ended_where_they_were(driver: Driver) -> None:
    driver.feed(*(audio(str(number), 1, 4800) for number in range(MOST_SESSIONS)))
    heard = [sent for sent in driver.advance(1000) if isinstance(sent, Played) and sent.session_id == "0"]
    driver.feed(audio("new", 1))
    (told,) = [sent for sent in driver.run() if isinstance(sent, Played) and sent.fin]
    assert (told.session_id, told.samples > heard[-1].samples > 0) == ("0", True)
    # What the tts still had of it makes no second reply of it.
    driver.feed(audio("0", 1, 4800, fin=True))
    assert not [sent for sent in driver.advance(1000) if sent.segment.session_id == "0"]


def test_a_reply_that_is_too_long_ends_with_what_fits(one: Playback) -> None:
    short = Playback(longest_pause_samples=10**9, longest_queue_samples=1000)
    add(short, 1, 900, text_end=5)
    add(short, 1, 900, text_end=9)
    add(short, 1, 90, text_end=10, fin=True)
    short.play(2000)
    assert reports(short) == [Report(1, 900, 5, is_last=True)]
    assert short.dropped == {"QUEUE_MAX_S is reached": 900, "the reply is over": 90}


def test_an_end_that_knows_no_text_takes_back_nothing_that_was_heard(one: Playback) -> None:
    add(one, 1, 480, text_end=13)
    add(one, 1, 480, text_end=20)
    add(one, 1, 0, fin=True)
    one.play(960)
    assert reports(one)[-1] == Report(1, 960, 20, is_last=True)


def test_a_last_piece_that_the_converter_keeps_to_itself_belongs_to_its_text(one: Playback) -> None:
    for samples, text_end, fin in ((2400, 5, False), (1, 9, False), (0, None, True)):
        one.add(1, np.ones(samples, np.float32), text_end, rate_hz=16_000, fin=fin, speculative=False)
    one.play(9600)
    assert reports(one)[-1].text_end == 9
