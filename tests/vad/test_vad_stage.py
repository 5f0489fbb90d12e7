"""The vad on the wire: segments, their order, and who interrupts whom."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pytest
from vad.driving import (
    PAUSE,
    SPEECH,
    finish,
    hear,
    heard,
    loud_is_speech,
    read,
    reads_too,
    say,
    speech,
    stage,
    vad,
    verbs,
    whole,
)

from dora_voice.audio import resample
from dora_voice.config import ConfigError, from_env
from dora_voice.messages import Audio, Control, Played, Text
from dora_voice.testing import Driver, SampleClock, silence, tone
from dora_voice_vad.config import Config
from dora_voice_vad.node import PORTS, build


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


def test_speech_over_a_reply_holds_it_at_once_and_flushes_it_once() -> None:
    driver = vad()
    hear(driver, SPEECH, PAUSE, PAUSE)
    heard(driver, 1, fin=False)
    sent = hear(driver, SPEECH, SPEECH, PAUSE)
    assert verbs(sent) == [("start", 2), ("pause", 1), ("flush", 2), ("commit", 2)]
    assert [m.flush for m in sent if isinstance(m, Control)] == [False, False, True, False]


def test_the_flush_comes_as_soon_as_there_is_enough_speech() -> None:
    driver = vad(barge_in_ms=300)
    hear(driver, SPEECH, PAUSE, PAUSE)
    assert ("flush", 2) not in verbs(hear(driver, tone(288)))
    assert ("flush", 2) in verbs(hear(driver, tone(32)))


def test_a_real_word_interrupts_before_there_is_enough_speech() -> None:
    driver = reads_too()
    hear(driver, SPEECH, PAUSE, PAUSE)
    hear(driver, SPEECH)
    assert verbs(read(driver, 2, "Stop what", fin=False)) == []
    assert verbs(read(driver, 2, "Stop, what is", fin=False, sure=4)) == [("flush", 2)]


@pytest.mark.parametrize("text", ["Mm-hmm.", "", "Yeah, okay."])
def test_a_hum_pauses_the_reply_and_lets_it_go_on_and_leaves_no_trace(text: str) -> None:
    driver = reads_too()
    hear(driver, SPEECH, PAUSE, PAUSE)
    assert verbs(hear(driver, SPEECH, silence(256))) == [("start", 2), ("pause", 1)]
    assert verbs(read(driver, 2, text)) == [("drop", 2), ("resume", 1)]
    assert verbs(hear(driver, PAUSE)) == []


def test_a_hum_in_ones_own_words_is_a_setting() -> None:
    driver = reads_too(backchannels="weiter|na klar")
    hear(driver, SPEECH, PAUSE, PAUSE)
    hear(driver, SPEECH, silence(256))
    assert verbs(read(driver, 2, "Na klar!")) == [("drop", 2), ("resume", 1)]


def test_the_echo_of_what_is_being_said_interrupts_nothing() -> None:
    driver = reads_too()
    hear(driver, SPEECH, PAUSE, PAUSE)
    say(driver, 1, "Once there was a robot by the sea.", heard_chars=10)
    hear(driver, SPEECH, silence(256))
    assert verbs(read(driver, 2, "There was a robot.")) == [("drop", 2), ("resume", 1)]


def test_one_word_of_the_reply_is_an_answer_once_it_is_all_that_was_said() -> None:
    driver = reads_too()
    hear(driver, SPEECH, PAUSE, PAUSE)
    say(driver, 1, "Shall I go on or stop?", heard_chars=22)
    hear(driver, SPEECH, silence(256))
    assert verbs(read(driver, 2, "Stop", fin=False, sure=4)) == []
    assert verbs(read(driver, 2, "Stop.")) == [("flush", 2)]


def test_who_repeats_a_reply_that_is_over_interrupts_the_one_that_is_to_come() -> None:
    driver = reads_too()
    hear(driver, SPEECH, PAUSE, PAUSE)
    say(driver, 1, "Once there was a robot.", heard_chars=23, fin=True)
    hear(driver, SPEECH, PAUSE, PAUSE)
    assert verbs(hear(driver, SPEECH, silence(256))) == [("start", 3), ("pause", 2)]
    assert verbs(read(driver, 3, "There was a robot?")) == [("flush", 3)]


def test_the_echo_of_the_last_words_may_be_understood_after_they_were_reported_as_heard() -> None:
    driver = reads_too()
    hear(driver, SPEECH, PAUSE, PAUSE)
    say(driver, 1, "Once there was a robot.", heard_chars=20)
    hear(driver, SPEECH, silence(256))
    heard(driver, 1)
    assert verbs(read(driver, 2, "There was a robot.")) == [("drop", 2), ("resume", 1)]


def test_sound_that_comes_while_a_hum_is_taken_back_is_a_segment_of_its_own() -> None:
    driver = reads_too()
    hear(driver, SPEECH, PAUSE, PAUSE)
    hear(driver, SPEECH)
    driver.feed(Text(port="hypothesis", text="Mm-hmm.", session_id="a", segment_id=2, fin=True))
    sent = hear(driver, SPEECH)
    assert verbs(sent) == [("drop", 2), ("start", 3), ("resume", 1), ("pause", 1)]
    assert {m.segment_id for m in sent if isinstance(m, Audio)} == {3}


def test_what_turns_out_to_be_nothing_while_it_is_sent_is_sent_no_further() -> None:
    driver = reads_too()
    hear(driver, SPEECH, PAUSE, PAUSE)
    driver.feed(Audio(port="audio", samples=tone(32), sample_rate=16_000, session_id="a"))
    already = len(driver.sent)
    while not speech(driver.sent, 2):
        driver.step()
    read(driver, 2, "")
    assert verbs(driver.sent[already:]) == [("start", 2), ("pause", 1), ("drop", 2), ("resume", 1)]
    assert {m.segment_id for m in driver.sent[already:] if isinstance(m, Audio)} == {2}


def test_an_utterance_over_a_reply_waits_to_be_understood() -> None:
    driver = reads_too()
    hear(driver, SPEECH, PAUSE, PAUSE)
    assert "commit" not in [verb for verb, _ in verbs(hear(driver, SPEECH, PAUSE))]
    assert verbs(read(driver, 2, "Stop.")) == [("flush", 2)]
    assert verbs(hear(driver, silence(32))) == [("commit", 2)]


def test_where_nobody_understands_it_it_was_meant() -> None:
    driver = reads_too()
    hear(driver, SPEECH, PAUSE, PAUSE)
    assert verbs(hear(driver, SPEECH, silence(3_000))) == [("start", 2), ("pause", 1), ("flush", 2), ("commit", 2)]


def test_a_recogniser_that_failed_has_not_heard_a_hum() -> None:
    driver = reads_too()
    hear(driver, SPEECH, PAUSE, PAUSE)
    hear(driver, SPEECH, silence(256))
    assert verbs(read(driver, 2, "", error="RuntimeError: out of memory")) == []
    assert verbs(hear(driver, silence(2_000))) == [("flush", 2), ("commit", 2)]


def test_a_click_over_a_reply_pauses_it_for_a_moment() -> None:
    driver = vad()
    hear(driver, SPEECH, PAUSE, PAUSE)
    assert verbs(hear(driver, tone(64), PAUSE)) == [("start", 2), ("pause", 1), ("drop", 2), ("resume", 1)]


def test_the_answer_begins_at_the_soft_end_and_is_sure_at_the_hard_end() -> None:
    driver = vad()
    sent = hear(driver, SPEECH, silence(128))
    assert [m.speculative for m in speech(sent, 1) if m.fin] == [True]
    assert verbs(hear(driver, PAUSE)) == [("commit", 1)]


def test_without_speculation_nothing_begins_before_the_hard_end() -> None:
    driver = vad(speculate=False)
    assert not any(m.fin for m in hear(driver, SPEECH, silence(640)))
    sent = hear(driver, silence(64))
    assert [m.speculative for m in speech(sent, 1) if m.fin] == [False]
    assert verbs(sent) == [("commit", 1)]


def test_without_speculation_only_what_may_be_a_hum_is_sent_before_it_is_sure() -> None:
    driver = reads_too(speculate=False)
    hear(driver, SPEECH, PAUSE, PAUSE)
    sent = hear(driver, SPEECH, silence(720))
    assert [m.speculative for m in speech(sent, 2) if m.fin] == [True]
    assert verbs(sent) == [("start", 2), ("pause", 1)]


def test_who_goes_on_after_the_soft_end_never_ended_and_no_sample_is_sent_twice() -> None:
    driver = vad()
    source = np.concatenate([silence(1_024), SPEECH, silence(256), SPEECH, PAUSE])
    sent = hear(driver, source)
    assert verbs(sent) == [("start", 1), ("drop", 1), ("start", 2), ("commit", 2)]
    assert [m.continues for m in sent if isinstance(m, Control)] == [None, None, 1, None]
    assert {fragment.continues for fragment in speech(sent, 2)} == {1}
    both = whole([*speech(sent, 1), *speech(sent, 2)])
    begin = 16_384 - 6_400
    np.testing.assert_array_equal(both, source[begin : begin + len(both)])


def test_it_is_taken_back_when_it_goes_on_which_begins_where_it_seemed_to_end() -> None:
    sent = hear(vad(), silence(1_024), SPEECH, silence(256), tone(32))
    at_ms = [(m.verb, m.audio_ms) for m in sent if isinstance(m, Control)]
    assert at_ms == [("start", 1_024 - 400), ("drop", 1_024 + 640 + 256 + 32), ("start", 1_024 + 640 + 96)]


def test_who_goes_on_right_after_the_hard_end_reopens_the_turn() -> None:
    driver = vad()
    hear(driver, SPEECH, silence(720))
    heard(driver, 1, samples=2_400, fin=False)
    sent = hear(driver, SPEECH, PAUSE)
    assert verbs(sent) == [("start", 2), ("pause", 1), ("drop", 1), ("commit", 2)]
    assert [m.continues for m in sent if isinstance(m, Control)] == [1, None, None, None]


def test_a_click_right_after_the_hard_end_reopens_nothing() -> None:
    driver = vad()
    hear(driver, SPEECH, silence(720))
    assert verbs(hear(driver, tone(64), PAUSE)) == [("start", 2), ("pause", 1), ("drop", 2), ("resume", 1)]


@pytest.mark.parametrize(("silence_ms", "heard_samples"), [(720, 24_000), (1_500, 0)])
def test_a_turn_is_not_reopened_too_late_nor_when_much_of_its_reply_was_heard(
    silence_ms: int, heard_samples: int
) -> None:
    driver = vad()
    hear(driver, SPEECH, silence(silence_ms))
    heard(driver, 1, samples=heard_samples, fin=False)
    sent = hear(driver, SPEECH, PAUSE)
    assert verbs(sent) == [("start", 2), ("pause", 1), ("flush", 2), ("commit", 2)]


def test_a_finished_sentence_ends_soon_and_an_unfinished_one_late() -> None:
    driver = reads_too()
    hear(driver, SPEECH, silence(256))
    read(driver, 1, "What is the capital of France?")
    assert verbs(hear(driver, silence(96))) == [("commit", 1)]
    hear(driver, silence(1_024))
    heard(driver, 1)
    hear(driver, SPEECH, silence(256))
    read(driver, 2, "I would like to")
    assert verbs(hear(driver, silence(900))) == []
    assert verbs(hear(driver, silence(64))) == [("commit", 2)]


def test_a_source_that_stalls_in_an_utterance_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    driver = vad()
    hear(driver, SPEECH)
    driver.clock.now_s += 1.9
    assert verbs(driver.run()) == []
    driver.clock.now_s += 0.3
    with caplog.at_level(logging.WARNING, "dora_voice.vad"):
        assert verbs(driver.run()) == [("commit", 1)]
    assert "no sound for 2 s" in caplog.text


def test_speech_after_a_reply_was_played_to_its_end_flushes_nothing() -> None:
    driver = vad()
    hear(driver, SPEECH, PAUSE)
    heard(driver, 1)
    assert verbs(hear(driver, SPEECH, PAUSE)) == [("start", 2), ("commit", 2)]


def test_without_played_every_earlier_segment_may_still_be_alive() -> None:
    driver = vad(wired={"audio"})
    hear(driver, SPEECH, PAUSE, PAUSE)
    assert ("flush", 2) in verbs(hear(driver, SPEECH, PAUSE))


def test_a_dropped_segment_is_not_alive() -> None:
    driver = vad(wired={"audio"})
    hear(driver, tone(100), PAUSE)
    assert verbs(hear(driver, SPEECH, PAUSE)) == [("start", 2), ("commit", 2)]


def test_ids_go_on_above_any_that_was_played() -> None:
    driver = vad()
    heard(driver, 40)
    assert verbs(hear(driver, SPEECH))[0] == ("start", 41)


@pytest.mark.parametrize("port", ["reply", "hypothesis"])
def test_ids_go_on_above_any_that_was_spoken_of(port: str) -> None:
    driver = reads_too()
    driver.feed(Text(port=port, text="Hello.", session_id="a", segment_id=40))
    assert verbs(hear(driver, SPEECH))[0] == ("start", 41)


def test_ids_after_a_restart_are_above_all_before_it() -> None:
    assert verbs(hear(vad(restarts=2), SPEECH))[0] == ("start", 2_000_001)


def test_ids_do_not_go_back_when_a_finished_session_comes_again() -> None:
    driver = vad()
    hear(driver, SPEECH)
    finish(driver)
    assert verbs(hear(driver, SPEECH))[0] == ("start", 2)


def test_what_was_said_in_a_session_is_forgotten_when_it_finishes() -> None:
    driver = reads_too()
    hear(driver, SPEECH, PAUSE, PAUSE)
    say(driver, 1, "Once there was a robot.", heard_chars=10)
    finish(driver)
    hear(driver, SPEECH, silence(256))
    assert verbs(read(driver, 2, "There was a robot.")) == [("flush", 2)]


def test_a_session_that_is_listened_to_is_never_the_one_too_many() -> None:
    driver = vad()
    hear(driver, SPEECH)
    for number in range(1_100):
        driver.feed(Played(port="played", samples=0, session_id=f"text {number}", segment_id=1))
    driver.run()
    driver.clock.now_s += 2.5
    assert verbs(driver.run()) == [("commit", 1)]
    assert verbs(hear(driver, PAUSE, SPEECH))[0] == ("start", 2)


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

    driver = Driver(stage(Config(), moody), PORTS)
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


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"BARGE_IN_MS": "100"}, "BARGE_IN_MS=100: expected at least MIN_SPEECH_MS=250"),
        ({"END_POLICY": "silence", "FINISHED_SILENCE_MS": "200"}, "FINISHED_SILENCE_MS=200 has no effect with END_POL"),
        ({"SPECULATE": "false", "UNFINISHED_SILENCE_MS": "900"}, "UNFINISHED_SILENCE_MS=900 has no effect with SPECU"),
        ({"SPECULATE": "false", "SOFT_END_MS": "200"}, "SOFT_END_MS=200 has no effect with SPECULATE=false"),
        ({"SPECULATE": "false", "END_POLICY": "smart-turn"}, "END_POLICY=smart-turn has no effect with SPECUL"),
        ({"SMART_TURN_MODEL": "my.onnx"}, "SMART_TURN_MODEL=my.onnx has no effect with END_POLICY=sentence"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(settings: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        build(from_env(Config, settings))


def test_a_word_too_short_to_interrupt_does_so_when_it_is_committed() -> None:
    driver = vad()
    hear(driver, silence(1_024), SPEECH, PAUSE, PAUSE)
    sent = hear(driver, tone(256 + 32), PAUSE)
    assert verbs(sent) == [("start", 2), ("pause", 1), ("flush", 2), ("commit", 2)]


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
    # There is nothing to pause; but what is still on its way to the next speaker isn't known any more.
    assert verbs(hear(driver, SPEECH, PAUSE)) == [("start", 2), ("flush", 2), ("commit", 2)]
    heard(driver, 2)
    assert verbs(hear(driver, SPEECH, PAUSE)) == [("start", 3), ("commit", 3)]


def test_a_vad_that_was_restarted_interrupts_what_it_does_not_know_any_more() -> None:
    driver = vad(restarts=1)
    assert verbs(hear(driver, silence(1_024), SPEECH, PAUSE)) == [
        *(("start", 1_000_001), ("flush", 1_000_001), ("commit", 1_000_001))
    ]


def test_a_session_that_is_ended_for_another_in_the_middle_of_its_sound_leaves_nothing_open() -> None:
    driver = vad(sessions=1)
    driver.feed(
        Audio(port="audio", samples=np.concatenate([silence(320), SPEECH]), sample_rate=16_000, session_id="a"),
        Audio(port="audio", samples=silence(640), sample_rate=16_000, session_id="b"),
    )
    sent = driver.run() + hear(driver, PAUSE) + finish(driver)
    begun = [segment_id for verb, segment_id in verbs(sent) if verb == "start"]
    assert begun == [segment_id for verb, segment_id in verbs(sent) if verb in ("commit", "drop")]


def test_sound_that_takes_long_to_listen_to_has_not_stalled(caplog: pytest.LogCaptureFixture) -> None:
    """Half a minute in one message."""
    clock = SampleClock()

    def slow(window: np.ndarray) -> float:
        clock.now_s += 0.001
        return loud_is_speech(window)

    driver = Driver(stage(Config(stall_ms=100), slow), PORTS, wired={"audio", "played"}, clock=clock)
    samples = np.concatenate([SPEECH, PAUSE] * 20)
    driver.feed(Audio(port="audio", samples=samples, sample_rate=16_000, session_id="a"))
    assert [verb for verb, _ in verbs(driver.advance(1)) if verb == "commit"] == ["commit"] * 20
    assert not caplog.messages


def test_empty_sound_is_no_sound() -> None:
    driver = vad()
    hear(driver, SPEECH)
    for _ in range(30):
        driver.advance(100)
        driver.feed(Audio(port="audio", samples=silence(0), sample_rate=16_000, session_id="a"))
    driver.run()
    assert verbs(driver.sent)[-1] == ("commit", 1)


def test_a_number_that_nobody_could_count_on_from_is_not_taken_up() -> None:
    driver = vad()
    driver.feed(Played(port="played", samples=0, session_id="a", segment_id=2**62))
    assert verbs(hear(driver, SPEECH))[0] == ("start", 1)


def test_who_knows_no_ids_speaks_of_the_newest_segment() -> None:
    driver = reads_too()
    hear(driver, SPEECH, PAUSE)
    driver.feed_raw("played", pa.array([4_800]), session_id="a")
    driver.run()
    assert verbs(hear(driver, silence(1_024), SPEECH)) == [("start", 2), ("pause", 1)]
    driver.feed_raw("hypothesis", pa.array(["Mm-hmm."]), session_id="a")
    assert verbs(driver.run()) == [("drop", 2), ("resume", 1)]


def test_a_session_that_comes_again_waits_until_the_one_before_has_finished() -> None:
    driver = vad()
    driver.feed(
        Audio(port="audio", samples=SPEECH, sample_rate=16_000, session_id="a"),
        Audio(port="audio", samples=silence(0), sample_rate=16_000, session_id="a", finish=True),
        Audio(port="audio", samples=SPEECH, sample_rate=16_000, session_id="a"),
    )
    sent = driver.run()
    assert verbs(sent) == [("start", 1), ("commit", 1), ("start", 2), ("pause", 1)]
    assert [m.finish for m in sent].index(True) < sent.index(next(m for m in sent if m.segment_id == 2))
    sent = driver.end_inputs()
    assert verbs(sent) == [("flush", 2), ("commit", 2)]
    assert sent[-1].finish


def test_numbers_go_on_above_those_of_a_client_and_its_end_is_the_end_of_the_session() -> None:
    driver = vad(wired={"audio", "played", "client_control"})
    driver.feed(Control(port="client_control", verb="flush", flush=True, session_id="a", segment_id=7))
    assert verbs(hear(driver, SPEECH))[0] == ("start", 8)
    driver.feed(Control(port="client_control", verb="end", session_id="a", segment_id=0))
    assert verbs(hear(driver, PAUSE)) == []
