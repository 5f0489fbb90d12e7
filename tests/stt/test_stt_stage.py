"""The stage collects each segment's speech until its end, and says what was said."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from stt.dictation import Listener, control, speech, texts

from dora_voice.config import ConfigError, from_env
from dora_voice.messages import Audio, Segment, Text
from dora_voice.testing import Driver, silence, tone
from dora_voice_stt.fake import FakeRecognizer
from dora_voice_stt.node import PORTS, Config, build
from dora_voice_stt.stage import SttStage
from dora_voice_stt.utterances import MOST_UTTERANCES


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def driver(listener: Listener) -> Driver:
    return Driver(SttStage(listener, longest_utterance_s=2), PORTS)


def test_nothing_is_said_before_the_end(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(tone(100)), speech(tone(100), seq=1))
    assert driver.run() == []
    driver.feed(speech(tone(50), seq=2, fin=True))
    text, hypothesis = driver.run()
    assert isinstance(hypothesis, Text)
    assert isinstance(text, Text)
    assert (hypothesis.port, hypothesis.text, hypothesis.fin) == ("hypothesis", "hello", True)
    assert (text.port, text.text, text.fin, text.language, text.rejected) == ("text", "hello", True, "en", None)
    np.testing.assert_array_equal(listener.heard[0], np.concatenate([tone(100), tone(100), tone(50)]))


def test_no_speech_ends_with_an_empty_text_that_says_why(driver: Driver) -> None:
    driver.feed(speech(silence(500), fin=True))
    sent = driver.run()
    assert [(m.port, m.text, m.fin) for m in sent if isinstance(m, Text)] == [
        ("text", "", True),
        ("hypothesis", "", True),
    ]
    assert "unlikely words" in (texts(sent)[0].rejected or "")


def test_a_segment_without_samples_has_no_audio(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(silence(0), fin=True))
    assert [(text.text, text.rejected) for text in texts(driver.run())] == [("", "no audio")]
    assert listener.heard == []


def test_what_goes_beyond_the_limit_is_dropped_and_said(
    driver: Driver, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    driver.feed(speech(tone(1500)), speech(tone(1500), seq=1, fin=True))
    with caplog.at_level(logging.WARNING):
        driver.run()
    assert len(listener.heard[0]) == 32_000
    assert "MAX_UTTERANCE_S=2: dropped its last 1000 ms" in caplog.text


def test_sessions_are_kept_apart(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(tone(100)), speech(tone(200), session_id="b"), speech(tone(100), seq=1, fin=True))
    driver.feed(speech(tone(200), session_id="b", seq=1, fin=True))
    assert {(text.session_id, text.text) for text in texts(driver.run())} == {("a", "hello"), ("b", "hello")}
    assert sorted(len(heard) for heard in listener.heard) == [3200, 6400]


def test_a_failing_model_ends_that_segment_only(driver: Driver) -> None:
    driver.feed(speech(tone(100, level=1), fin=True), speech(tone(100), segment_id=2, fin=True))
    failed, served = texts(driver.run())
    assert (failed.segment_id, failed.fin, failed.text) == (1, True, "")
    assert "too loud" in (failed.error or "")
    assert (served.segment_id, served.text, served.error) == (2, "hello", None)


def test_a_sample_rate_that_changes_ends_that_segment_with_an_error(driver: Driver) -> None:
    other_rate = Audio(port="speech", samples=tone(50), sample_rate=48_000, session_id="a", segment_id=1, seq=1)
    driver.feed(speech(tone(100)), other_rate, speech(tone(100), segment_id=2, fin=True))
    failed, served = texts(driver.run())
    assert "sample_rate=48000: expected 16000" in (failed.error or "")
    assert served.text == "hello"


def test_a_flushed_segment_is_not_transcribed(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(tone(100)))
    driver.run()
    driver.feed(control("flush", 2), speech(tone(100), seq=1, fin=True), speech(tone(60), segment_id=2, fin=True))
    assert [text.segment_id for text in texts(driver.run())] == [2]
    assert [len(heard) for heard in listener.heard] == [960]


def test_a_flush_during_transcription_silences_the_result(driver: Driver) -> None:
    driver.feed(speech(tone(100), fin=True))
    driver.step()
    driver.feed(control("flush", 2))
    assert driver.run() == []


def test_an_ended_session_leaves_nothing_behind(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(tone(100), segment_id=5))
    driver.run()
    driver.feed(control("end", 5))
    driver.run()
    driver.feed(speech(tone(50), segment_id=6, continues=5, fin=True))
    driver.run()
    assert [len(heard) for heard in listener.heard] == [800]


def test_speech_that_never_ends_is_bounded(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    for segment_id in range(1, MOST_UTTERANCES + 2):
        driver.feed(speech(tone(20), segment_id))
    driver.run()
    assert "forgot the speech of session=a segment=1" in caplog.text


def test_the_last_message_of_the_session_is_passed_on(driver: Driver) -> None:
    driver.feed(speech(tone(100), fin=True), speech(silence(0), finish=True))
    assert [(message.port, message.finish) for message in driver.run()] == [
        ("text", False),
        ("hypothesis", False),
        ("text", True),
        ("hypothesis", True),
        ("recorded", True),
    ]


def test_a_recording_is_written_down_and_neither_answered_nor_guessed_at(listener: Listener) -> None:
    driver = Driver(SttStage(listener, longest_utterance_s=2, hypothesis_ms=100), PORTS)
    recording = replace(speech(tone(600)), port="recording")
    driver.feed(recording, replace(recording, seq=1, fin=True))
    (written,) = driver.run()
    assert isinstance(written, Text)
    assert (written.port, written.text, written.fin) == ("recorded", "hello", True)


def test_a_client_that_leaves_takes_its_recording_with_it(driver: Driver, listener: Listener) -> None:
    driver.feed(replace(speech(tone(600)), port="recording"), replace(control("end", 0), port="client_control"))
    driver.feed(replace(speech(tone(100), fin=True), port="recording"))
    driver.run()
    assert [heard.size for heard in listener.heard] == [1600]


def test_the_fake_says_its_texts_in_order() -> None:
    stage = build(from_env(Config, {"BACKEND": "fake", "FAKE_TEXTS": "what is this | tell me a story"}))
    driver = Driver(stage, PORTS)
    driver.feed(*(speech(tone(100), segment_id, fin=True) for segment_id in (1, 2, 3)))
    assert [text.text for text in texts(driver.run())] == ["what is this", "tell me a story", "what is this"]


def test_the_fake_without_texts_says_how_long_it_was() -> None:
    assert FakeRecognizer([]).transcribe(tone(1500), Segment("a", 1)).text == "1.5 seconds"


def test_the_fake_guesses_as_many_words_as_were_heard_so_far() -> None:
    fake = FakeRecognizer(["tell me a story"])
    guesses = [list(fake.guess(tone(ms), Segment("a", 1)))[-1] for ms in (100, 500, 750, 5000)]
    assert [guess.text for guess in guesses if guess] == ["", "tell me", "tell me a", "tell me a story"]


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"BACKEND": "fake", "MODEL": "x"}, "MODEL has no effect with BACKEND=fake"),
        ({"BACKEND": "fake", "SPOKEN_LANGUAGE": "en"}, "SPOKEN_LANGUAGE has no effect"),
        ({"FAKE_TEXTS": "x"}, "FAKE_TEXTS has no effect"),
        ({"BACKEND": "transformers"}, "MODEL is empty"),
        ({"MAX_UTTERANCE_S": "31"}, "MAX_UTTERANCE_S='31'"),
        ({"HYPOTHESIS_MS": "-1"}, "HYPOTHESIS_MS='-1'"),
        ({"THREADS": "-1"}, "THREADS='-1'"),
    ],
)
def test_a_setting_without_effect_is_refused_by_name(env: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        from_env(Config, env)


def test_a_flush_that_the_last_hypothesis_brings_about_does_not_stop_the_text(listener: Listener) -> None:
    driver = Driver(SttStage(listener, longest_utterance_s=5), PORTS)
    driver.feed(speech(tone(100), fin=True))
    while not texts(driver.sent, "hypothesis"):
        assert driver.step()
    driver.feed(control("flush", 2))
    driver.run()
    assert [text.text for text in texts(driver.sent)] == ["hello"]
