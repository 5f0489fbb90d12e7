"""In a pause, what was said is transcribed: if nothing more comes, that was the wait."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from stt.dictation import Listener, speech, texts

from dora_voice.audio import Samples
from dora_voice.messages import Message
from dora_voice.testing import Driver, silence, tone
from dora_voice_stt.node import PORTS
from dora_voice_stt.stage import SttStage


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def driver(listener: Listener) -> Driver:
    return start(listener)


def start(listener: Listener, hypothesis_ms: int = 500, **wiring: set[str]) -> Driver:
    driver = Driver(SttStage(listener, longest_utterance_s=5, hypothesis_ms=hypothesis_ms), PORTS, **wiring)
    driver.run()
    return driver


def say(driver: Driver, *parts: Samples) -> list[Message]:
    """In chunks of 50 ms, each as soon as the one before has been dealt with."""
    already = len(driver.sent)
    samples = np.concatenate(parts)
    for chunk in np.split(samples, range(800, len(samples), 800)):
        driver.feed(speech(chunk, seq=next(SEQ)))
        driver.run()
    return driver.sent[already:]


@pytest.fixture(autouse=True)
def numbered_from_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.SEQ", count())


SEQ = count()


def end(driver: Driver, *parts: Samples) -> list[str]:
    """What the utterance says, which ends with these."""
    driver.feed(speech(np.concatenate([silence(0), *parts]), seq=next(SEQ), fin=True))
    return [text.text for text in texts(driver.run())]


def lengths_ms(listener: Listener) -> list[int]:
    return [len(samples) // 16 for samples in listener.heard]


def test_an_utterance_that_ends_with_its_pause_is_transcribed_already(driver: Driver, listener: Listener) -> None:
    say(driver, tone(400), silence(200))
    assert lengths_ms(listener) == [500], "as soon as it is a pause, and once"
    assert end(driver, silence(30)) == ["hello"]
    assert lengths_ms(listener) == [500]


def test_what_is_said_after_the_pause_is_transcribed_with_it(driver: Driver, listener: Listener) -> None:
    say(driver, tone(400), silence(200), tone(200))
    assert end(driver) == ["hello"]
    assert lengths_ms(listener) == [500, 800]


def test_a_last_sound_after_the_draft_is_heard(driver: Driver, listener: Listener) -> None:
    say(driver, tone(400), silence(100))
    assert end(driver, silence(20), 0.2 * tone(30), silence(50)) == ["hello"]
    assert lengths_ms(listener) == [500, 600]


def test_quiet_words_after_loud_ones_are_no_pause(driver: Driver, listener: Listener) -> None:
    say(driver, silence(200), tone(400), 0.08 * tone(200))
    assert lengths_ms(listener) == []
    say(driver, silence(150), 0.08 * tone(600))
    assert end(driver, silence(50)) == ["hello"]
    assert lengths_ms(listener)[-1] == 1600


def test_after_a_bang_speech_is_speech(driver: Driver, listener: Listener) -> None:
    say(driver, silence(200), 1.7 * tone(100), silence(200), 0.1 * tone(600))
    assert end(driver, silence(100)) == ["hello"]
    assert lengths_ms(listener)[-1] >= 1100
    assert len(lengths_ms(listener)) <= 2


@pytest.mark.parametrize("bump", [0.9, 0.3])
def test_after_a_bump_in_the_middle_of_it_speech_is_speech(driver: Driver, listener: Listener, bump: float) -> None:
    quiet = [part for _ in range(4) for part in (0.02 * tone(250), 0.005 * tone(100))]
    say(driver, silence(200), *quiet, bump * tone(150), *quiet)
    assert end(driver, silence(100)) == ["hello"]
    assert lengths_ms(listener)[-1] == 200 + 2 * 1400 + 150 + 100


def test_each_pause_has_its_draft(driver: Driver, listener: Listener) -> None:
    say(driver, tone(400), silence(200), tone(200), silence(200))
    assert end(driver) == ["hello"]
    assert lengths_ms(listener) == [500, 900]


def test_a_draft_is_a_guess(driver: Driver) -> None:
    heard = texts(say(driver, tone(400), silence(200)), "hypothesis")
    assert [(text.text, text.fin) for text in heard] == [("hello", False)]


def test_where_nobody_gets_guesses_drafts_are_made_all_the_same(listener: Listener) -> None:
    driver = start(listener, wired_outputs={"text"})
    assert say(driver, tone(400), silence(200)) == []
    assert end(driver) == ["hello"]
    assert lengths_ms(listener) == [500]


def test_who_wants_no_guesses_gets_no_drafts(listener: Listener) -> None:
    driver = start(listener, hypothesis_ms=0)
    say(driver, tone(400), silence(200))
    assert lengths_ms(listener) == []


def test_a_draft_that_fails_is_made_once_and_the_end_tries_again(driver: Driver, listener: Listener) -> None:
    say(driver, 2 * tone(400), silence(300))
    assert lengths_ms(listener) == [500]
    driver.feed(speech(silence(0), seq=next(SEQ), fin=True))
    (text,) = texts(driver.run())
    assert text.error == "RuntimeError: too loud"
    assert lengths_ms(listener) == [500, 700]


def test_an_end_that_waits_needs_no_draft(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(np.concatenate([tone(400), silence(200)])), speech(silence(0), seq=1, fin=True))
    assert [text.text for text in texts(driver.run())] == ["hello"]
    assert lengths_ms(listener) == [600]


def test_a_guess_is_given_up_when_the_speaker_pauses(driver: Driver, listener: Listener) -> None:
    driver.feed(speech(tone(600)))
    while listener.guess_steps == 0:
        driver.step()
    driver.feed(speech(silence(100), seq=1))
    driver.run()
    assert listener.guess_steps == 1
    assert lengths_ms(listener) == [700]
