"""The source on the wire: on time, in order, to the end."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import soundfile

from dora_voice.config import SetupError, from_env
from dora_voice.messages import Audio, Control, Message, Played
from dora_voice.testing import Driver, silence, tone
from dora_voice_source.node import PORTS, Config, build
from dora_voice_source.stage import SourceStage

TWO_UTTERANCES = np.concatenate([silence(1_000), tone(500), silence(1_500), tone(500), silence(1_000)])
FIRST_ENDS, SECOND_BEGINS = 24_000, 48_000


def source(recording: np.ndarray, *, is_fast: bool = False, wired: set[str] | None = None) -> Driver:
    stage = SourceStage(np.array_split(recording, 7), "a", is_fast=is_fast)
    return Driver(stage, PORTS, wired={"control", "played"} if wired is None else wired)


def control(driver: Driver, verb: str, segment_id: int = 1, session_id: str = "a") -> list[Message]:
    driver.feed(Control(port="control", verb=verb, session_id=session_id, segment_id=segment_id))
    return driver.run()


def played(driver: Driver, segment_id: int = 1, fin: bool = True) -> list[Message]:
    driver.feed(Played(port="played", samples=100, session_id="a", segment_id=segment_id, fin=fin))
    return driver.run()


def samples_of(sent: list[Message]) -> np.ndarray:
    return np.concatenate([message.samples for message in sent if isinstance(message, Audio)])


def is_finished(driver: Driver) -> bool:
    return bool(driver.sent) and driver.sent[-1].finish


def test_everything_is_sent_in_chunks_of_20_ms_and_then_finish() -> None:
    driver = source(tone(1_010))
    driver.advance(2_000)
    sizes = [len(message.samples) for message in driver.sent if isinstance(message, Audio)]
    assert sizes == [320] * 50 + [160, 0]
    assert [message.finish for message in driver.sent] == [False] * 51 + [True]
    assert [message.seq for message in driver.sent] == list(range(52))
    assert [m.audio_ms for m in driver.sent if isinstance(m, Audio)][:3] == [0, 20, 40]
    assert {message.session_id for message in driver.sent} == {"a"}
    np.testing.assert_array_equal(samples_of(driver.sent), tone(1_010))
    assert not driver.scheduler.is_running


def test_a_chunk_leaves_when_its_last_sample_was_spoken_and_never_drifts() -> None:
    driver = source(tone(60_000))
    driver.advance(19.9)
    assert len(driver.sent) == 0
    for spoken_ms in range(20, 60_000, 500):
        driver.advance(spoken_ms + 0.2 - driver.clock.now_s * 1000)
        assert len(samples_of(driver.sent)) == spoken_ms // 20 * 320


def test_other_messages_do_not_hurry_it() -> None:
    driver = source(tone(1_000))
    for _ in range(50):
        control(driver, "start")
    assert driver.sent == []


def test_what_is_late_after_a_standstill_is_sent_at_once() -> None:
    driver = source(tone(1_000))
    driver.advance(100)
    driver.clock.now_s += 0.5
    driver.run()
    assert len(samples_of(driver.sent)) == 30 * 320


def test_a_flush_does_not_stop_what_the_user_says() -> None:
    driver = source(tone(1_000))
    driver.advance(100)
    driver.feed(Control(port="control", verb="flush", flush=True, session_id="a", segment_id=7))
    driver.advance(1_000)
    assert is_finished(driver)
    assert len(samples_of(driver.sent)) == 16_000


def test_fast_sends_up_to_the_next_utterance_and_waits_for_the_reply_to_the_one_before() -> None:
    driver = source(TWO_UTTERANCES, is_fast=True)
    driver.advance(1_000)
    assert FIRST_ENDS < len(samples_of(driver.sent)) <= SECOND_BEGINS
    control(driver, "start")
    control(driver, "commit")
    driver.advance(20_000)
    assert len(samples_of(driver.sent)) <= SECOND_BEGINS
    played(driver, fin=False)
    driver.advance(20_000)
    assert len(samples_of(driver.sent)) <= SECOND_BEGINS
    played(driver)
    driver.advance(1_000)
    assert is_finished(driver)
    np.testing.assert_array_equal(samples_of(driver.sent), TWO_UTTERANCES)


@pytest.mark.parametrize("answer", ["drop", "flush"])
def test_fast_does_not_wait_for_what_was_dropped_or_flushed(answer: str) -> None:
    driver = source(TWO_UTTERANCES, is_fast=True)
    driver.advance(600)
    control(driver, "commit")
    control(driver, answer, 2 if answer == "flush" else 1)
    driver.advance(2_000)
    assert is_finished(driver)


def test_fast_does_not_wait_for_other_sessions() -> None:
    driver = source(TWO_UTTERANCES, is_fast=True)
    control(driver, "commit", session_id="b")
    driver.advance(3_000)
    assert is_finished(driver)


def test_fast_does_not_wait_for_an_open_utterance_because_that_needs_more_sound_to_end() -> None:
    driver = source(TWO_UTTERANCES, is_fast=True)
    driver.advance(600)
    control(driver, "start")
    driver.advance(2_000)
    assert is_finished(driver)


def test_fast_gives_the_vad_time_to_say_what_it_heard() -> None:
    driver = source(TWO_UTTERANCES, is_fast=True)
    driver.advance(600)
    at = len(samples_of(driver.sent))
    assert FIRST_ENDS < at <= SECOND_BEGINS
    driver.advance(350)
    assert len(samples_of(driver.sent)) == at
    driver.advance(1_000)
    assert is_finished(driver)


def test_fast_goes_on_after_a_minute_without_a_reply_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    driver = source(TWO_UTTERANCES, is_fast=True)
    driver.advance(600)
    control(driver, "commit")
    driver.advance(59_000)
    assert not is_finished(driver)
    driver.advance(3_000)
    assert is_finished(driver)
    assert "goes on without a reply" in caplog.text


@pytest.mark.parametrize("wired", [set(), {"control"}, {"played"}])
def test_fast_without_feedback_does_not_wait_and_says_so_once(
    wired: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "dora_voice.source"):
        driver = source(TWO_UTTERANCES, is_fast=True, wired=wired)
        driver.advance(400)
    assert is_finished(driver)
    assert caplog.text.count("needs both control and played") == 1


def test_the_bundled_recording_is_the_default() -> None:
    driver = Driver(build(from_env(Config, {"PACE": "fast"})), PORTS, wired=set())
    driver.advance(2_000)
    assert is_finished(driver)
    assert len(samples_of(driver.sent)) == pytest.approx(23.273 * 16_000, abs=16)


def test_a_file_is_found_from_where_the_user_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "hello.wav", tone(300), 16_000, "FLOAT")
    monkeypatch.chdir(tmp_path)
    driver = Driver(build(from_env(Config, {"AUDIO_IN": "hello.wav", "SESSION_ID": "b"})), PORTS)
    driver.advance(1_000)
    assert {message.session_id for message in driver.sent} == {"b"}
    np.testing.assert_array_equal(samples_of(driver.sent), tone(300))


def test_a_missing_file_stops_the_start() -> None:
    with pytest.raises(SetupError, match=r"AUDIO_IN=.*gone\.wav"):
        build(from_env(Config, {"AUDIO_IN": "gone.wav"}))
