"""Makes the recogniser that the settings ask for."""

from __future__ import annotations

import numpy as np

from dora_voice.messages import SOURCE_RATE_HZ, Segment
from dora_voice.threads import with_fewest_threads
from dora_voice_stt.config import Config
from dora_voice_stt.recognizer import Recognizer


def load(config: Config) -> Recognizer:
    if config.backend == "fake":
        from dora_voice_stt.fake import FakeRecognizer

        return FakeRecognizer([text.strip() for text in config.fake_texts.split("|") if text.strip()])
    if config.threads:
        return _load_whisper(config, config.threads)
    silence = np.zeros(2 * SOURCE_RATE_HZ, np.float32)
    return with_fewest_threads(
        lambda threads: _load_whisper(config, threads),
        lambda recognizer: recognizer.transcribe(silence, Segment("trial", 0)),
    )


def _load_whisper(config: Config, threads: int) -> Recognizer:
    if config.backend == "faster-whisper":
        from dora_voice_stt.ctranslate2_whisper import CTranslate2Whisper

        return CTranslate2Whisper(config.model, config.spoken_language, threads)
    from dora_voice_stt.transformers_whisper import TransformersWhisper

    return TransformersWhisper(config.model, config.spoken_language, threads)
