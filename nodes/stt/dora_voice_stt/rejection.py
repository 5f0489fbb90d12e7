"""Tells words that were said from what Whisper makes up when nobody speaks.

Asked to transcribe a motor or music, Whisper still writes something: unlikely words, one word over and
over, or a phrase that its training data had in silent places. The limits were found on recorded noises
and spoken clips; none of them alone is enough.
"""

from __future__ import annotations

import re

from dora_voice_stt.recognizer import Transcript

HIGHEST_COMPRESSION_RATIO = 2.4
LOWEST_LOG_PROBABILITY = -1.0
NO_SPEECH_PROBABILITY = 0.6
LOWEST_LOG_PROBABILITY_OF_DOUBTFUL_SPEECH = -0.79
NO_SPEECH_PROBABILITY_OF_STOCK_PHRASES = 0.5

STOCK_PHRASES = frozenset(
    {
        "beep beep",
        "bye",
        "bye bye",
        "please subscribe",
        "thank you",
        "thank you for watching",
        "thank you so much",
        "thank you very much",
        "thanks for watching",
        "you",
    }
)


def why_no_speech(transcript: Transcript) -> str | None:
    """Why this isn't what someone said; None if it is."""
    words = re.findall(r"\w+", transcript.text.lower())
    no_speech, log_probability = transcript.no_speech_probability, transcript.average_log_probability
    if not words:
        return "no words"
    if transcript.compression_ratio > HIGHEST_COMPRESSION_RATIO:
        return f"repeats itself: compression ratio {transcript.compression_ratio:.2f}"
    if log_probability < LOWEST_LOG_PROBABILITY:
        return f"unlikely words: average log-probability {log_probability:.2f}"
    if no_speech > NO_SPEECH_PROBABILITY and log_probability < LOWEST_LOG_PROBABILITY_OF_DOUBTFUL_SPEECH:
        return f"no speech: probability {no_speech:.2f}, average log-probability {log_probability:.2f}"
    if no_speech > NO_SPEECH_PROBABILITY_OF_STOCK_PHRASES and " ".join(words) in STOCK_PHRASES:
        return f"no speech: probability {no_speech:.2f}, a phrase that silence is often taken for"
    return None
