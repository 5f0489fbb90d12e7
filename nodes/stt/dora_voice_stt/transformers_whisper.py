"""Whisper through transformers, in the number format of its weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from dora_voice.audio import Samples
from dora_voice.config import ConfigError, SetupError, user_path
from dora_voice.messages import SOURCE_RATE_HZ, Segment
from dora_voice_stt.recognizer import Transcript
from dora_voice_stt.spelling import as_sentence


class TransformersWhisper:
    def __init__(self, model: str, language: str, threads: int) -> None:
        """`model`: a folder or a Hugging Face id.

        Raises SetupError for a model that can't be loaded, ConfigError for a language that it can't do.
        """
        # Threads that wait must not take the cores from the other nodes. Read when torch is loaded.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        self._processor, self._model = _load(model, threads)
        self._model.generation_config.update(return_dict_in_generate=True, output_scores=True, do_sample=False)
        self._language = language
        self._threads = threads
        self._prompt = self._prompt_tokens(language)
        self.name = f"Whisper {model} (transformers, {threads} threads)"
        self.transcribe(np.zeros(SOURCE_RATE_HZ, np.float32), Segment("warm-up", 0))

    def transcribe(self, samples: Samples, segment: Segment) -> Transcript:
        return self._say(self._hear(samples))

    def guess(self, samples: Samples, segment: Segment) -> Iterator[Transcript | None]:
        heard = self._hear(samples)
        yield None
        yield self._say(heard)

    def _hear(self, samples: Samples) -> Any:
        """What the encoder makes of the sound."""
        import torch

        torch.set_num_threads(self._threads)
        spectrogram = self._processor(samples, sampling_rate=SOURCE_RATE_HZ, return_tensors="pt").input_features
        with torch.inference_mode():
            return self._model.get_encoder()(spectrogram.to(self._model.dtype))

    def _say(self, heard: Any) -> Transcript:
        import torch

        prompt = torch.tensor([self._prompt])
        with torch.inference_mode():
            # What the model would say first, before it is told the language: it may be that there is no speech.
            first = self._model(encoder_outputs=heard, decoder_input_ids=prompt[:, :1]).logits[0, -1].float()
            made = self._model.generate(encoder_outputs=heard, decoder_input_ids=prompt)
            scores = self._model.compute_transition_scores(made.sequences, made.scores, normalize_logits=True)
        text = self._processor.batch_decode(made.sequences, skip_special_tokens=True)[0]
        # In every Whisper vocabulary the token for silence stands before the one for "no timestamps".
        no_speech = float(first.softmax(-1)[self._prompt[-1] - 1])
        sentence = as_sentence(text.strip(), self._language)
        return Transcript(sentence, self._language, no_speech, float(scores.float().mean()))

    def _prompt_tokens(self, language: str) -> list[int]:
        """Start, language and task (which English-only models don't have), no timestamps."""
        options = self._model.generation_config
        languages: dict[str, int] | None = getattr(options, "lang_to_id", None)
        known = ["en"] if languages is None else [token.strip("<|>") for token in languages]
        if language not in known:
            raise ConfigError(f"SPOKEN_LANGUAGE={language!r}: this model expects {' or '.join(sorted(known))}")
        spoken = [] if languages is None else [languages[f"<|{language}|>"], options.task_to_id["transcribe"]]
        no_timestamps = self._processor.tokenizer.convert_tokens_to_ids("<|notimestamps|>")
        return [self._model.config.decoder_start_token_id, *spoken, no_timestamps]


def _load(model: str, threads: int) -> tuple[Any, Any]:
    """Processor and model."""
    try:
        import torch
        from transformers import WhisperForConditionalGeneration, WhisperProcessor

        torch.set_num_threads(threads)
        path = str(user_path(model)) if user_path(model).is_dir() else model
        return WhisperProcessor.from_pretrained(path), WhisperForConditionalGeneration.from_pretrained(path).eval()
    except ImportError as error:
        raise SetupError(f"{error.name} is not installed. Run: pip install dora-voice-stt[transformers]") from error
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise SetupError(
            f"MODEL={model!r} can't be loaded ({reason}): expected the folder or the Hugging Face id "
            "of a Whisper model in transformers' format"
        ) from error
