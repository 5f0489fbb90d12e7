"""Silences within a reply, because its audio came too late, are counted and logged."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from dora_voice.audio import Samples
from dora_voice.messages import Audio
from dora_voice.testing import Driver
from dora_voice_speaker.backends import NullSpeaker
from dora_voice_speaker.node import PORTS
from dora_voice_speaker.playback import Playback
from dora_voice_speaker.reply import Underruns
from dora_voice_speaker.stage import SpeakerStage


@pytest.fixture
def one() -> Playback:
    return Playback(longest_pause_samples=10**9, longest_queue_samples=10**9)


def sound(samples: int) -> Samples:
    return np.ones(samples, np.float32)


def add(one: Playback, samples: int, segment_id: int = 1, fin: bool = False, speculative: bool = False) -> None:
    one.add(segment_id, sound(samples), None, fin=fin, speculative=speculative)


def underruns(one: Playback) -> list[Underruns]:
    """Of each reply that has ended."""
    return [report.underruns for report in iter(one.next_report, None) if report.is_last]


def test_each_silence_before_more_audio_counts_once(one: Playback) -> None:
    add(one, 100)
    one.play(150)
    one.play(50)
    add(one, 100)
    one.play(130)
    add(one, 100, fin=True)
    one.play(200)
    assert underruns(one) == [Underruns(2, 130)]


def test_the_session_adds_up_its_replies(one: Playback) -> None:
    for segment_id in (1, 2):
        add(one, 100, segment_id)
        one.play(110)
        add(one, 100, segment_id, fin=True)
        one.play(100)
    assert one.underruns == Underruns(2, 20)


def test_to_wait_for_the_beginning_or_after_the_end_is_none(one: Playback) -> None:
    add(one, 0)
    one.play(100)
    add(one, 100)
    one.play(200)
    add(one, 0, fin=True)
    one.play(100)
    assert underruns(one) == [Underruns()]


def test_what_is_paused_or_held_lacks_nothing(one: Playback) -> None:
    add(one, 100)
    one.play(100)
    one.pause(1)
    one.play(1000)
    one.resume(1)
    add(one, 100, fin=True)
    one.play(1000)
    add(one, 100, segment_id=2, speculative=True)
    one.play(1000)
    one.drop(2)
    assert underruns(one) == [Underruns(), Underruns()]


def test_a_reply_that_is_cut_while_it_lacks_audio_had_an_underrun(one: Playback) -> None:
    add(one, 100)
    one.play(150)
    one.flush(2)
    assert underruns(one) == [Underruns(1, 50)]


def audio(samples: int, segment_id: int = 1, fin: bool = False) -> Audio:
    return Audio(
        port="audio", samples=sound(samples), sample_rate=24_000, session_id="a", segment_id=segment_id, fin=fin
    )


def test_they_are_logged_once_at_the_end_of_the_reply(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stage = SpeakerStage(NullSpeaker(), is_fast=False, longest_pause_ms=4000, longest_queue_s=60)
    driver = Driver(stage, PORTS)
    driver.feed(audio(2400))
    driver.advance(200)
    assert "underruns" not in caplog.text
    driver.feed(audio(2400, fin=True), audio(2400, 2, fin=True))
    driver.advance(500)
    (line,) = [record.message for record in caplog.records if "underruns" in record.message]
    # 100 ms without the tick in which more came.
    assert line == "session=a segment=1 underruns=1 samples=2160 session_underruns=1 session_samples=2160"
