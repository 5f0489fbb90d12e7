"""dora-voice-source: where the user's voice comes from; an audio file, as if it were a microphone."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from dora_voice.config import setting, user_path
from dora_voice.messages import DEFAULT_SESSION, Audio, Control, Played
from dora_voice.runtime import serve
from dora_voice.stage import Ports
from dora_voice_source.decoding import decode
from dora_voice_source.stage import SourceStage

log = logging.getLogger("dora_voice.source")

BUNDLED = Path(str(files("dora_voice_source"))) / "three-questions.wav"
PORTS = Ports(
    inputs={"control": Control, "played": Played},
    outputs={"audio": Audio},
    feedback=frozenset({"control", "played"}),
)


@dataclass(frozen=True, slots=True)
class Config:
    backend: Literal["file"] = setting("file", "where the sound comes from")
    audio_in: str = setting("", "audio file, relative to where dora run was called; empty: a bundled recording")
    pace: Literal["realtime", "fast"] = setting("realtime", "fast: no faster than the replies to what was said")
    session_id: str = setting(DEFAULT_SESSION, "the session that the sound belongs to")


def build(config: Config) -> SourceStage:
    path = user_path(config.audio_in) if config.audio_in else BUNDLED
    recording = decode(path)
    log.info("plays %s, PACE=%s, session=%s", path, config.pace, config.session_id)
    return SourceStage(recording, config.session_id, is_fast=config.pace == "fast")


def main(node: Any | None = None) -> None:
    """Console script `dora-voice-source`."""
    serve(build, Config, PORTS, node)
