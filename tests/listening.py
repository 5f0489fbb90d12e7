"""Listens with numbers: what was said in a WAV file, and how far that is from what should have been."""

from functools import cache

import jiwer
import soundfile
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from dora_voice.audio import resample
from dora_voice.messages import Segment
from dora_voice_stt.node import Config, load

plain_words = EnglishTextNormalizer({})
"""Case, punctuation and the spelling of numbers aside."""


@cache
def recognizer():
    return load(Config())


def transcribed(path):
    samples, rate = soundfile.read(path, dtype="float32")
    return recognizer().transcribe(resample(samples, rate, 16_000), Segment("test", 1)).text


def word_errors(truth, heard):
    """Wrong words, and words in all."""
    words = jiwer.process_words(plain_words(truth), plain_words(heard))
    return words.substitutions + words.deletions + words.insertions, len(plain_words(truth).split())
