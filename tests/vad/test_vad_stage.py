"""The vad on the wire: segments, their order, and who interrupts whom. The detector is a fake: loud is speech."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pytest

from dora_voice.audio import resample
from dora_voice.config import ConfigError, from_env
from dora_voice.messages import Audio, Control, Message, Played
from dora_voice.testing import Driver, silence, tone
from dora_voice_vad.node import PORTS, Config, build, limits
from dora_voice_vad.stage import VadStage

SPEECH, PAUSE = tone(640), silence(1_024)


def loud_is_speech(window: np.ndarray) -> float:
    return float(np.abs(window).max() > 0.1)


def vad(sessions: int = 32, restarts: int = 0, wired: set[str] | None = None) -> Driver:
    stage = VadStage(lambda: loud_is_speech, limits(Config()), sessions)
    return Driver(stage, PORTS, wired=wired or {"audio", "played"}, restarts=restarts)


def hear(driver: Driver, *sounds: np.ndarray, session: str = "a", rate_hz: int = 16_000) -> list[Message]:
    for sound in sounds:
        driver.feed(Audio(port="audio", samples=sound, sample_rate=rate_hz, session_id=session))
    return driver.run()


def finish(driver: Driver, session: str = "a") -> list[Message]:
    driver.feed(Audio(port="audio", samples=silence(0), sample_rate=16_000, session_id=session, finish=True))
    return driver.run()


def heard(driver: Driver, segment_id: int, samples: int = 24_000, fin: bool = True) -> None:
    driver.feed(Played(port="played", samples=samples, session_id="a", segment_id=segment_id, fin=fin))
    driver.run()


def verbs(messages: list[Message], session: str = "a") -> list[tuple[str, int | None]]:
    return [(m.verb, m.segment_id) for m in messages if isinstance(m, Control) and m.session_id == session]


def speech(messages: list[Message], segment_id: int, session: str = "a") -> list[Audio]:
    return [m for m in messages if isinstance(m, Audio) and (m.session_id, m.segment_id) == (session, segment_id)]


def whole(fragments: list[Audio]) -> np.ndarray:
    return np.concatenate([fragment.samples for fragment in fragments])


def test_a_segment_starts_is_streamed_ends_and_is_committed_in_this_order() -> None:
    sent = hear(vad(), silence(1_024), SPEECH, PAUSE)
    kinds = [m.verb if isinstance(m, Control) else "fin" if m.fin else "speech" for m in sent]
    assert kinds[:2] == ["start", "speech"]
    assert kinds[-2:] == ["fin", "commit"]
    assert set(kinds[1:-2]) == {"speech"}
    assert [m.seq for m in sent if isinstance(m, Audio)] == list(range(len(sent) - 2))


def test_speech_is_streamed_while_the_user_speaks() -> None:
    sent = hear(vad(), silence(1_024), SPEECH)
    assert sum(len(fragment.samples) for fragment in speech(sent, 1)) == 6_400 + len(SPEECH)


@pytest.mark.parametrize("chunk_samples", [1, 320, 512, 1_000, 100_000])
def test_the_samples_are_exactly_those_of_the_source_whatever_the_chunks(chunk_samples: int) -> None:
    source = np.concatenate([silence(1_024), SPEECH, PAUSE])
    source += np.random.default_rng(1).uniform(-0.01, 0.01, len(source)).astype(np.float32)
    chunks = [source[i : i + chunk_samples] for i in range(0, len(source), chunk_samples)]
    fragments = speech(hear(vad(), *chunks), 1)
    begin = 16_384 - 6_400
    assert fragments[0].audio_ms == begin // 16
    np.testing.assert_array_equal(whole(fragments), source[begin : begin + len(whole(fragments))])


def test_each_fragment_says_where_it_is_in_the_source() -> None:
    fragments, position = speech(hear(vad(), silence(1_024), SPEECH, PAUSE), 1), 16_384 - 6_400
    for fragment in fragments:
        assert fragment.audio_ms == position * 1_000 // 16_000
        position += len(fragment.samples)


def test_too_little_speech_is_dropped_without_a_fin() -> None:
    sent = hear(vad(), silence(512), tone(100), PAUSE)
    assert verbs(sent) == [("start", 1), ("drop", 1)]
    assert not any(m.fin for m in sent)


def test_speech_over_a_reply_that_is_still_played_flushes_it_once() -> None:
    driver = vad()
    hear(driver, SPEECH, PAUSE)
    heard(driver, 1, fin=False)
    sent = hear(driver, SPEECH, SPEECH, PAUSE)
    assert verbs(sent) == [("start", 2), ("flush", 2), ("commit", 2)]
    assert [m.flush for m in sent if isinstance(m, Control)] == [False, True, False]


def test_the_flush_comes_as_soon_as_there_is_enough_speech() -> None:
    driver = vad()
    hear(driver, SPEECH, PAUSE)
    assert ("flush", 2) not in verbs(hear(driver, tone(288)))
    assert ("flush", 2) in verbs(hear(driver, tone(32)))


def test_speech_after_a_reply_was_played_to_its_end_flushes_nothing() -> None:
    driver = vad()
    hear(driver, SPEECH, PAUSE)
    heard(driver, 1)
    assert verbs(hear(driver, SPEECH, PAUSE)) == [("start", 2), ("commit", 2)]


def test_without_played_every_earlier_segment_may_still_be_alive() -> None:
    driver = vad(wired={"audio"})
    hear(driver, SPEECH, PAUSE)
    assert ("flush", 2) in verbs(hear(driver, SPEECH, PAUSE))


def test_a_dropped_segment_is_not_alive() -> None:
    driver = vad(wired={"audio"})
    hear(driver, tone(100), PAUSE)
    assert verbs(hear(driver, SPEECH, PAUSE)) == [("start", 2), ("commit", 2)]


def test_ids_go_on_above_any_that_was_played() -> None:
    driver = vad()
    heard(driver, 40)
    assert verbs(hear(driver, SPEECH))[0] == ("start", 41)


def test_ids_after_a_restart_are_above_all_before_it() -> None:
    assert verbs(hear(vad(restarts=2), SPEECH))[0] == ("start", 2_000_001)


def test_ids_do_not_go_back_when_a_finished_session_comes_again() -> None:
    driver = vad()
    hear(driver, SPEECH)
    finish(driver)
    assert verbs(hear(driver, SPEECH))[0] == ("start", 2)


def test_sessions_over_one_input_do_not_disturb_each_other() -> None:
    driver, sent = vad(), []
    for i in range(0, len(SPEECH), 320):
        sent += hear(driver, SPEECH[i : i + 320], session="a")
        sent += hear(driver, 0.5 * SPEECH[i : i + 320], session="b")
    sent += hear(driver, PAUSE, session="a") + hear(driver, PAUSE, session="b")
    for session, factor in (("a", 1.0), ("b", 0.5)):
        assert verbs(sent, session) == [("start", 1), ("commit", 1)]
        samples = whole(speech(sent, 1, session))
        np.testing.assert_array_equal(samples[: len(SPEECH)], np.float32(factor) * SPEECH)


def test_a_session_too_many_ends_the_one_not_heard_for_longest(caplog: pytest.LogCaptureFixture) -> None:
    driver = vad(sessions=1)
    hear(driver, SPEECH, session="old")
    with caplog.at_level(logging.WARNING, "dora_voice.vad"):
        sent = hear(driver, SPEECH, session="new")
    assert verbs(sent, "old") == [("commit", 1)]
    assert verbs(sent, "new") == [("start", 1)]
    assert "session=old is ended: SESSIONS=1" in caplog.text


def test_finish_commits_an_open_segment_with_its_last_sample_and_passes_on() -> None:
    driver = vad()
    odd = tone(641)
    sent = hear(driver, odd) + finish(driver)
    assert verbs(sent) == [("start", 1), ("commit", 1)]
    np.testing.assert_array_equal(whole([f for f in speech(sent, 1) if not f.finish]), odd)
    assert [m.port for m in sent if m.finish] == ["speech"]
    assert sent[-1].finish


def test_finish_drops_an_open_segment_with_too_little_speech() -> None:
    driver = vad()
    assert verbs(hear(driver, tone(100)) + finish(driver)) == [("start", 1), ("drop", 1)]


def test_sound_of_a_node_that_knows_no_contract_is_the_default_session() -> None:
    driver = vad()
    driver.feed_raw("audio", pa.array(SPEECH))
    assert verbs(driver.run(), "default") == [("start", 1)]


@pytest.mark.parametrize("rate_hz", [8_000, 44_100, 48_000])
def test_other_rates_are_resampled_and_times_stay_true(rate_hz: int) -> None:
    sound = resample(np.concatenate([silence(1_024), SPEECH, PAUSE]), 16_000, rate_hz)
    driver = vad()
    sent = hear(driver, *np.array_split(sound, 37), rate_hz=rate_hz) + finish(driver)
    assert verbs(sent) == [("start", 1), ("commit", 1)]
    first = speech(sent, 1)[0]
    assert first.sample_rate == 16_000
    assert first.audio_ms is not None
    assert abs(first.audio_ms - (1_024 - 400)) <= 32


def test_a_rate_that_changes_on_the_way_loses_nothing() -> None:
    driver = vad()
    sent = hear(driver, silence(512, 48_000), rate_hz=48_000) + hear(driver, SPEECH, PAUSE)
    assert verbs(sent) == [("start", 1), ("commit", 1)]


def test_a_detector_that_fails_ends_the_segment_with_an_error_and_the_next_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def moody(window: np.ndarray) -> float:
        if window.max() > 0.9:
            raise RuntimeError("too loud for me")
        return loud_is_speech(window)

    driver = Driver(VadStage(lambda: moody, limits(Config()), 1), PORTS)
    sent = hear(driver, SPEECH, tone(32, level=1), PAUSE, SPEECH, PAUSE)
    ends = [(m.segment_id, m.error) for m in sent if isinstance(m, Audio) and m.fin]
    assert ends == [(1, "RuntimeError: too loud for me"), (2, None)]
    assert ("commit", 1) in verbs(sent)
    assert "session=a segment=1" in caplog.text


def test_long_sound_leaves_the_runtime_room_to_look_up() -> None:
    driver = vad()
    driver.feed(Audio(port="audio", samples=silence(3_200), sample_rate=16_000))
    steps = 0
    while driver.step():
        steps += 1
    assert steps >= 100


def test_settings_that_contradict_each_other_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="BARGE_IN_MS=100: expected at least MIN_SPEECH_MS=250"):
        build(from_env(Config, {"BARGE_IN_MS": "100"}))


def test_a_word_too_short_to_interrupt_does_so_when_it_is_committed() -> None:
    driver = vad()
    hear(driver, silence(1_024), SPEECH, PAUSE)
    sent = hear(driver, tone(256 + 32), PAUSE)
    assert verbs(sent) == [("start", 2), ("flush", 2), ("commit", 2)]


def test_times_go_on_from_those_of_the_source() -> None:
    driver = vad(restarts=1)
    sound = np.concatenate([silence(1_024), SPEECH, PAUSE])
    driver.feed(Audio(port="audio", samples=sound, sample_rate=16_000, session_id="a", audio_ms=60_000))
    start = driver.run()[0]
    assert isinstance(start, Control)
    assert start.audio_ms == 60_000 + 1_024 - 400


def test_a_source_that_crashed_ends_the_utterance_it_was_in() -> None:
    driver = vad()
    hear(driver, silence(1_024), SPEECH)
    driver.intake.restarted(["audio"], "source")
    assert verbs(driver.run()) == [("commit", 1)]
    assert verbs(hear(driver, silence(1_024), SPEECH, PAUSE))[0] == ("start", 2)


def test_replies_of_a_speaker_that_is_gone_are_over() -> None:
    driver = vad()
    hear(driver, silence(1_024), SPEECH, PAUSE)
    driver.intake.restarted(["played"], "speaker")
    assert verbs(hear(driver, SPEECH, PAUSE)) == [("start", 2), ("commit", 2)]
