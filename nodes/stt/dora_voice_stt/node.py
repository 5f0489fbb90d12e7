"""dora-voice-stt: says what was said in each segment of speech."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, Literal

from dora_voice.config import ConfigError, setting
from dora_voice.messages import Audio, Control, Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports
from dora_voice_stt.recognizer import Recognizer
from dora_voice_stt.stage import SttStage

log = logging.getLogger("dora_voice.stt")

PORTS = Ports(
    inputs={"speech": Audio, "control": Control},
    outputs={"text": Text, "hypothesis": Text},
    reply="text",
    ends_with=("speech",),
    continued=frozenset({"speech"}),
)
WHISPER = ("faster-whisper", "transformers")


@dataclass(frozen=True, slots=True)
class Config:
    backend: Literal["faster-whisper", "transformers", "fake"] = "faster-whisper"
    model: str = setting("", "folder or Hugging Face id; empty: the tiny.en that comes with the node", backends=WHISPER)
    # Not LANGUAGE: desktops set that, to something like "en_US:en".
    spoken_language: str = setting("en", "language code of what is spoken", backends=WHISPER)
    threads: int = setting(2, "compute threads", minimum=1, backends=WHISPER)
    max_utterance_s: int = setting(30, "seconds of a segment that are kept", minimum=10, maximum=30)
    hypothesis_ms: int = setting(500, "ms of new speech from one guess to the next; 0: none", minimum=0)
    fake_texts: str = setting("", "what the segments say, separated by |", backends=("fake",))

    def __post_init__(self) -> None:
        if self.backend == "transformers" and not self.model:
            raise ConfigError(
                "MODEL is empty: BACKEND=transformers expects the folder or Hugging Face id of a Whisper model"
            )


def build(config: Config) -> SttStage:
    started_s = time.monotonic()
    recognizer = load(config)
    log.info("loaded %s in %.1f s", recognizer.name, time.monotonic() - started_s)
    return SttStage(recognizer, config.max_utterance_s, config.hypothesis_ms)


def load(config: Config) -> Recognizer:
    if config.backend == "faster-whisper":
        from dora_voice_stt.ctranslate2_whisper import CTranslate2Whisper

        return CTranslate2Whisper(config.model, config.spoken_language, config.threads)
    if config.backend == "transformers":
        from dora_voice_stt.transformers_whisper import TransformersWhisper

        return TransformersWhisper(config.model, config.spoken_language, config.threads)
    from dora_voice_stt.fake import FakeRecognizer

    return FakeRecognizer([text.strip() for text in config.fake_texts.split("|") if text.strip()])


def main(node: Any | None = None) -> None:
    """Console script `dora-voice-stt`."""
    serve(build, Config, PORTS, node)
