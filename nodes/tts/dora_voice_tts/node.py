"""dora-voice-tts: speaks replies."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, Literal

from dora_voice.config import setting
from dora_voice.messages import SPEAKER_RATE_HZ, Audio, Control, Played, Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports
from dora_voice.threads import with_fewest_threads
from dora_voice_tts.stage import TtsStage
from dora_voice_tts.voice import Voice

log = logging.getLogger("dora_voice.tts")

PORTS = Ports(
    inputs={"text": Text, "control": Control, "client_control": Control, "played": Played},
    outputs={"audio": Audio},
    reply="audio",
    feedback=frozenset({"played"}),
    ends_with=("text",),
    rate_hz=SPEAKER_RATE_HZ,
)


@dataclass(frozen=True, slots=True)
class Config:
    backend: Literal["piper", "fake"] = "piper"
    voice: str = setting("", "a Piper voice's .onnx file; empty: the one that comes with the node", backends=("piper",))
    speed: float = setting(1.0, "how fast it speaks, 1 is as recorded", minimum=0.5, maximum=2, backends=("piper",))
    threads: int = setting(0, "compute threads; 0: what is fastest here", minimum=0, backends=("piper",))
    ahead_ms: int = setting(1500, "audio sent ahead of what was played", minimum=200)


def build(config: Config) -> TtsStage:
    started_s = time.monotonic()
    voice = load(config)
    log.info("loaded %s in %.1f s", voice.name, time.monotonic() - started_s)
    return TtsStage(voice, config.ahead_ms)


def load(config: Config) -> Voice:
    if config.backend == "fake":
        from dora_voice_tts.fake import FakeVoice

        return FakeVoice()
    if config.threads:
        return load_piper(config, config.threads)
    return with_fewest_threads(
        lambda threads: load_piper(config, threads), lambda voice: list(voice.speak("Hello.").pieces)
    )


def load_piper(config: Config, threads: int) -> Voice:
    from dora_voice_tts.piper_voice import PiperVoice

    return PiperVoice(config.voice, config.speed, threads)


def main(node: Any | None = None) -> None:
    """Console script `dora-voice-tts`."""
    serve(build, Config, PORTS, node)
