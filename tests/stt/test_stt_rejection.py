"""What Whisper makes up when nobody speaks is told from words that were said."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_voice_stt.recognizer import Transcript
from dora_voice_stt.rejection import STOCK_PHRASES, why_no_speech

probabilities = st.floats(0, 1)
log_probabilities = st.floats(-10, 0)


def transcript(text: str, no_speech: float, log_probability: float) -> Transcript:
    return Transcript(text, "en", no_speech, log_probability)


@pytest.mark.parametrize(
    ("text", "no_speech", "log_probability"),
    [
        pytest.param("What is the capital of France?", 0.05, -0.03, id="a clear question"),
        pytest.param("Stop.", 0.17, -0.68, id="one word"),
        pytest.param("Yes.", 0.40, -0.64, id="one word in a longer silence"),
        pytest.param("Thank you.", 0.30, -0.40, id="thanks that were said"),
        pytest.param("I said it in the wind", 0.70, -0.50, id="noisy, but the words are likely"),
        pytest.param("no no no no", 0.10, -0.30, id="a word said four times"),
    ],
)
def test_what_was_said_is_kept(text: str, no_speech: float, log_probability: float) -> None:
    assert why_no_speech(transcript(text, no_speech, log_probability)) is None


@pytest.mark.parametrize(
    ("text", "no_speech", "log_probability", "why"),
    [
        pytest.param("", 0.0, 0.0, "no words", id="nothing"),
        pytest.param(" . ...", 0.1, -0.1, "no words", id="dots"),
        pytest.param("♪♪♪", 0.1, -0.1, "no words", id="notes"),
        pytest.param("Beep " * 40, 0.1, -0.2, "repeats itself", id="one word over and over"),
        pytest.param("In a hammer", 0.22, -1.56, "unlikely words", id="a hum"),
        pytest.param("So what", 0.7, -0.85, "no speech", id="doubtful words in what is likely no speech"),
        pytest.param("Thank you.", 0.55, -0.2, "a phrase", id="thanks out of silence"),
        pytest.param("You", 0.94, -0.55, "a phrase", id="you out of silence"),
    ],
)
def test_what_was_made_up_is_rejected_and_says_why(
    text: str, no_speech: float, log_probability: float, why: str
) -> None:
    assert why in (why_no_speech(transcript(text, no_speech, log_probability)) or "")


@given(st.text(), probabilities, probabilities, log_probabilities, log_probabilities)
def test_surer_words_are_never_rejected_where_less_sure_ones_are_kept(
    text: str, no_speech_1: float, no_speech_2: float, log_probability_1: float, log_probability_2: float
) -> None:
    doubtful = transcript(text, max(no_speech_1, no_speech_2), min(log_probability_1, log_probability_2))
    surer = transcript(text, min(no_speech_1, no_speech_2), max(log_probability_1, log_probability_2))
    if why_no_speech(doubtful) is None:
        assert why_no_speech(surer) is None


@given(st.sampled_from(sorted(STOCK_PHRASES)), st.sampled_from(["{}", "{}.", " {}!", "{}, "]), st.booleans())
def test_stock_phrases_are_known_in_any_spelling(phrase: str, spelling: str, upper: bool) -> None:
    text = spelling.format(phrase.title() if upper else phrase)
    assert why_no_speech(transcript(text, 0.9, -0.1)) is not None


@given(st.text(), probabilities, log_probabilities)
def test_every_transcript_is_judged(text: str, no_speech: float, log_probability: float) -> None:
    judged = transcript(text, no_speech, log_probability)
    assert math.isfinite(judged.compression_ratio)
    assert why_no_speech(judged) != ""
