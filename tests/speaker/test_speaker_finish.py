"""A session ends when all of it was played and reported, whatever holds it up, and at either pace."""

from __future__ import annotations

import numpy as np
import pytest

from dora_voice.messages import Audio, Control, Message
from dora_voice.testing import Driver
from dora_voice_speaker.backends import NullSpeaker
from dora_voice_speaker.node import PORTS
from dora_voice_speaker.stage import SpeakerStage

either_pace = pytest.mark.parametrize("is_fast", [True, False], ids=["fast", "realtime"])
FINISH = Audio(port="audio", samples=np.zeros(0, np.float32), sample_rate=24_000, session_id="a", finish=True)


def speaker(is_fast: bool) -> Driver:
    return Driver(SpeakerStage(NullSpeaker(), is_fast=is_fast, longest_pause_ms=4000, longest_queue_s=60), PORTS)


def audio(samples: int, segment_id: int = 1, fin: bool = False) -> Audio:
    sound = np.ones(samples, np.float32)
    return Audio(port="audio", samples=sound, sample_rate=24_000, session_id="a", segment_id=segment_id, fin=fin)


def control(verb: str) -> Control:
    return Control(port="control", verb=verb, session_id="a", segment_id=1)


def told(sent: list[Message]) -> list[int | str]:
    """Samples of the reports, and what else they say."""
    return [word for m in sent for word in ["finish"] * m.finish or [m.samples] + ["fin"] * m.fin]


@either_pace
def test_nothing_is_reported_behind_the_sessions_last_message(is_fast: bool) -> None:
    driver = speaker(is_fast)
    driver.feed(*(audio(480, fin=n == 59) for n in range(60)), FINISH)
    driver.run()
    # Late, as on a busy machine: many reports are due at once.
    driver.clock.now_s += 2
    driver.advance(100)
    assert told(driver.sent) == [*range(2400, 28_801, 2400), 28_800, "fin", "finish"]
    assert [report.seq for report in driver.sent[:-1]] == list(range(13))


@either_pace
def test_a_pause_that_nobody_ends_holds_up_the_end_for_its_own_time_and_no_longer(is_fast: bool) -> None:
    driver = speaker(is_fast)
    driver.feed(control("pause"), audio(2400, fin=True), FINISH)
    assert driver.advance(3900) == []
    assert told(driver.advance(300)) == [2400, 2400, "fin", "finish"]


@either_pace
def test_a_paused_reply_goes_on_when_it_is_told_to(is_fast: bool) -> None:
    driver = speaker(is_fast)
    driver.feed(control("pause"), audio(2400, fin=True), FINISH)
    assert driver.advance(1000) == []
    driver.feed(control("resume"))
    assert told(driver.advance(200)) == [2400, 2400, "fin", "finish"]


@either_pace
def test_a_reply_whose_end_never_comes_is_given_up_after_10_s(is_fast: bool) -> None:
    driver = speaker(is_fast)
    driver.feed(audio(240), audio(240, 2, fin=True))
    assert driver.advance(9900) == []
    assert told(driver.advance(300)) == [240, "fin", 240, "fin"]


def test_a_session_ends_while_its_last_reply_fades() -> None:
    driver = speaker(is_fast=False)
    driver.feed(audio(24_000))
    # Between two ticks, so that the fade is yet to be played.
    driver.advance(305)
    driver.feed(control("drop"), FINISH)
    assert told(driver.advance(100)) == [7200, "fin", "finish"]
