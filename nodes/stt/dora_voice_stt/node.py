"""dora-voice-stt: says what was said in each segment of speech."""

from __future__ import annotations

import logging
import time
from typing import Any

from dora_voice.messages import Audio, Control, Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports
from dora_voice_stt.config import Config
from dora_voice_stt.loading import load
from dora_voice_stt.stage import SttStage

log = logging.getLogger("dora_voice.stt")

PORTS = Ports(
    inputs={"speech": Audio, "recording": Audio, "control": Control, "client_control": Control},
    outputs={"text": Text, "hypothesis": Text, "recorded": Text},
    reply="text",
    ends_with=("speech",),
    continued=frozenset({"speech"}),
)


def build(config: Config) -> SttStage:
    started_s = time.monotonic()
    recognizer = load(config)
    log.info("loaded %s in %.1f s", recognizer.name, time.monotonic() - started_s)
    return SttStage(recognizer, config.max_utterance_s, config.hypothesis_ms)


def main(node: Any | None = None) -> None:
    """Console script `dora-voice-stt`."""
    serve(build, Config, PORTS, node)
