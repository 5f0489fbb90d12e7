"""The settings of dora-voice-stt, read from the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dora_voice.config import ConfigError, setting

WHISPER = ("faster-whisper", "transformers")


@dataclass(frozen=True, slots=True)
class Config:
    backend: Literal["faster-whisper", "transformers", "fake"] = "faster-whisper"
    model: str = setting("", "folder or Hugging Face id; empty: the tiny.en that comes with the node", backends=WHISPER)
    # Not LANGUAGE: desktops set that, to something like "en_US:en".
    spoken_language: str = setting("en", "language code of what is spoken", backends=WHISPER)
    threads: int = setting(0, "compute threads; 0: what is fastest here", minimum=0, backends=WHISPER)
    max_utterance_s: int = setting(30, "seconds of a segment that are kept", minimum=10, maximum=30)
    hypothesis_ms: int = setting(500, "ms of new speech from one guess to the next; 0: none", minimum=0)
    fake_texts: str = setting("", "what the segments say, separated by |", backends=("fake",))

    def __post_init__(self) -> None:
        if self.backend == "transformers" and not self.model:
            raise ConfigError(
                "MODEL is empty: BACKEND=transformers expects the folder or Hugging Face id of a Whisper model"
            )
