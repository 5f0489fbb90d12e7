"""A growing utterance is guessed at while it grows, but never at the cost of what has ended."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stt.dictation import Listener, control, speech, texts

from dora_voice.audio import Samples
from dora_voice.messages import Message, Text
from dora_voice.testing import Driver, silence, tone
from dora_voice_stt.fake import FakeRecognizer
from dora_voice_stt.hypotheses import Hypotheses, agreement
from dora_voice_stt.node import PORTS
from dora_voice_stt.pause import goes_on_pausing, is_pausing, pause_power
from dora_voice_stt.recognizer import Recognizer, Transcript
from dora_voice_stt.stage import SttStage


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def driver(listener: Listener) -> Driver:
    return start(listener)


def start(recognizer: Recognizer) -> Driver:
    driver = Driver(SttStage(recognizer, longest_utterance_s=5, hypothesis_ms=500), PORTS)
    driver.run()
    return driver


def guesses(messages: list[Message]) -> list[str]:
    return [text.text for text in texts(messages, "hypothesis") if not text.fin]


def say(driver: Driver, samples: Samples, segment_id: int = 1, session_id: str = "a") -> list[Message]:
    """In chunks of 50 ms, each as soon as the one before has been dealt with."""
    chunks = np.split(samples, range(800, len(samples), 800))
    already = len(driver.sent)
    for seq, chunk in enumerate(chunks):
        driver.feed(speech(chunk, segment_id, seq, session_id))
        driver.run()
    return driver.sent[already:]


def test_the_words_come_while_they_are_said() -> None:
    driver = start(FakeRecognizer(["tell me a long story"]))
    said = say(driver, tone(1500))
    driver.feed(speech(silence(0), seq=99, fin=True))
    assert guesses(said) == ["tell me", "tell me a long", "tell me a long story"]
    assert [(text.port, text.text, text.fin) for text in driver.run() if isinstance(text, Text)] == [
        ("text", "tell me a long story", True),
        ("hypothesis", "tell me a long story", True),
    ]
    assert [text.seq for text in texts(driver.sent, "hypothesis")] == [0, 1, 2, 3]


def test_what_two_guesses_agree_on_is_marked(driver: Driver, listener: Listener) -> None:
    listener.guesses = ["What?", "What is the", "What is the capital"]
    heard = texts(say(driver, tone(1500)), "hypothesis")
    assert [(text.text[text.text_start : text.text_end], text.text) for text in heard] == [
        ("", "What?"),
        ("", "What is the"),
        ("What is the", "What is the capital"),
    ]


def test_the_last_one_is_agreed_on_as_a_whole(driver: Driver) -> None:
    driver.feed(speech(tone(100), fin=True))
    (last,) = texts(driver.run(), "hypothesis")
    assert (last.fin, last.text, last.text_start, last.text_end) == (True, "hello", 0, 5)


def test_the_same_guess_is_sent_again_only_because_it_is_stable_now(driver: Driver, listener: Listener) -> None:
    listener.guesses = ["one", "one", "one", "two", "one"]
    heard = texts(say(driver, tone(2500)), "hypothesis")
    assert [(text.text, text.text_end) for text in heard] == [("one", 0), ("one", 3), ("two", 0), ("one", 0)]


def test_a_guess_that_is_no_speech_is_not_sent(driver: Driver, listener: Listener) -> None:
    listener.guesses = [Transcript("Thank you.", "en", 0.9, -0.1), "", "thanks"]
    assert guesses(say(driver, tone(1500))) == ["thanks"]


def test_with_0_none_is_made(listener: Listener) -> None:
    driver = Driver(SttStage(listener, longest_utterance_s=5, hypothesis_ms=0), PORTS)
    assert say(driver, tone(2000)) == []
    assert listener.guessed == []


def test_none_is_made_where_nobody_gets_it(listener: Listener) -> None:
    stage = SttStage(listener, longest_utterance_s=5, hypothesis_ms=500)
    driver = Driver(stage, PORTS, wired_outputs={"text"})
    say(driver, tone(2000))
    assert listener.guessed == []


def test_who_is_behind_makes_one_guess_of_all_that_waits(driver: Driver, listener: Listener) -> None:
    driver.feed(*(speech(tone(500), seq=seq) for seq in range(5)))
    driver.run()
    assert [len(samples) for samples in listener.guessed] == [40_000]


def test_an_end_that_waits_goes_first(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(tone(500)), speech(tone(500), seq=1), speech(tone(50), seq=2, fin=True))
    assert [text.text for text in texts(driver.run())] == ["hello"]
    assert listener.guessed == []


def test_the_end_of_another_session_goes_first(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(tone(600)), speech(tone(100), session_id="b", fin=True))
    sent = driver.run()
    assert [(text.session_id, text.fin) for text in texts(sent, "hypothesis")] == [("b", True), ("a", False)]


@pytest.mark.parametrize("steps", range(1, 16))
def test_an_end_that_comes_meanwhile_waits_for_no_more_than_one_step(
    driver: Driver, listener: Listener, steps: int
) -> None:
    driver.feed(speech(tone(600)))
    for _ in range(steps):
        driver.step()
    begun, sent = listener.guess_steps, len(driver.sent)
    driver.feed(speech(tone(100), seq=1, fin=True))
    driver.run()
    assert driver.sent[-1].fin
    assert len(driver.sent) - sent <= 3
    assert listener.guess_steps - begun <= 1


@pytest.mark.parametrize("verb", ["flush", "drop", "end"])
def test_a_guess_at_what_died_meanwhile_is_given_up(driver: Driver, listener: Listener, verb: str) -> None:
    driver.feed(speech(tone(600)))
    while not listener.guessed:
        driver.step()
    driver.feed(control(verb, 2 if verb == "flush" else 1))
    assert driver.run() == []


def test_in_a_pause_none_is_begun(driver: Driver, listener: Listener) -> None:
    say(driver, np.concatenate([tone(400), silence(700)]))
    assert listener.guessed == []


def test_a_guess_at_what_is_not_committed_is_speculative(driver: Driver) -> None:
    driver.feed(speech(tone(600), speculative=True))
    assert [text.speculative for text in texts(driver.run(), "hypothesis")] == [True]


def test_what_is_continued_is_guessed_at_with_what_was_before(driver: Driver, listener: Listener) -> None:
    say(driver, tone(450))
    driver.feed(control("drop", 1), speech(tone(450), 2, continues=1))
    driver.run()
    assert listener.guessed == []
    driver.feed(speech(tone(50), 2, seq=1, continues=1))
    assert [text.segment_id for text in texts(driver.run(), "hypothesis")] == [2]
    assert [len(samples) for samples in listener.guessed] == [15_200]


def test_beyond_the_limit_there_is_nothing_new_to_guess(driver: Driver, listener: Listener) -> None:
    say(driver, tone(7000))
    assert len(listener.guessed) == 10


def test_a_guess_that_fails_costs_only_itself(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    assert guesses(say(driver, tone(600, level=1))) == []
    assert "no guess of session=a segment=1" in caplog.text
    assert guesses(say(driver, tone(600), segment_id=2)) == ["hello"]


def test_the_longest_without_a_guess_is_next(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(tone(600)), speech(tone(900), session_id="b"))
    assert [text.session_id for text in texts(driver.run(), "hypothesis")] == ["b", "a"]


@pytest.mark.parametrize(
    ("before", "now", "agreed"),
    [
        ("", "What", ""),
        ("What is the", "What is the capital", "What is the"),
        ("What is the cap", "What is the capital", "What is the"),
        ("What is it.", "What is it", "What is"),
        ("Où est-ce", "Où est-ce que", "Où est-ce"),
        ("今天天氣", "今天天气好", "今天天"),
        ("今天 hello", "今天 hello 你", "今天 hello"),
        ("same", "same", "same"),
    ],
)
def test_guesses_agree_word_by_word(before: str, now: str, agreed: str) -> None:
    assert now[: agreement(before, now)] == agreed


@given(st.text(), st.text())
def test_what_is_agreed_on_begins_both(before: str, now: str) -> None:
    end = agreement(before, now)
    assert before[:end] == now[:end]


@given(st.lists(st.integers(0, 20_000)))
def test_a_guess_is_due_after_each_stretch_of_sound(pieces: list[int]) -> None:
    hypotheses, heard, made = Hypotheses(500), 0, 0
    for piece in pieces:
        heard += piece
        if hypotheses.is_due(heard):
            hypotheses.begin(heard)
            made += 1
    assert made <= heard // 8_000
    assert hypotheses.new_samples(heard) < 8_000


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param(tone(300), False, id="speaking"),
        pytest.param(np.concatenate([tone(300), silence(100)]), True, id="just paused"),
        pytest.param(np.concatenate([tone(300), silence(50)]), False, id="hardly paused"),
        pytest.param(np.concatenate([tone(300), tone(100, level=0.1)]), False, id="spoke softly"),
        pytest.param(np.concatenate([tone(300), silence(3000)]), False, id="long ago"),
        pytest.param(silence(500), False, id="nothing but silence"),
        pytest.param(tone(50), False, id="too short to say"),
    ],
)
def test_a_pause_is_quiet_after_loud(samples: Samples, expected: bool) -> None:
    assert is_pausing(samples) == expected


NOISE = np.random.default_rng(1).standard_normal(16_000).astype(np.float32)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (silence(0), True),
        (silence(300), True),
        (0.002 * NOISE[:4800], True),
        (0.01 * NOISE[:4800], True),
        (np.concatenate([0.01 * NOISE[:1600], 0.02 * NOISE[:400], 0.01 * NOISE[:1600]]), False),
        (np.concatenate([silence(100), tone(300)]), False),
    ],
    ids=["nothing", "silence", "less noise", "the same noise", "a short burst", "speech"],
)
def test_a_pause_in_noise_goes_on_until_something_is_louder_than_it_was(after: Samples, expected: bool) -> None:
    paused = np.concatenate([0.01 * NOISE[:3200], tone(500) + 0.01 * NOISE[:8000], 0.01 * NOISE[:1600]])
    assert is_pausing(paused)
    assert goes_on_pausing(after, pause_power(paused)) == expected
