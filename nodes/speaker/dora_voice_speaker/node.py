"""dora-voice-speaker: plays replies and reports what was heard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dora_voice.config import setting, user_path
from dora_voice.messages import SPEAKER_RATE_HZ, Audio, Control, Played
from dora_voice.runtime import serve
from dora_voice.stage import Ports
from dora_voice_speaker.backends import FileSpeaker, NullSpeaker
from dora_voice_speaker.stage import SpeakerStage

PORTS = Ports(
    inputs={"audio": Audio, "control": Control},
    outputs={"played": Played},
    ends_with=("audio",),
    rate_hz=SPEAKER_RATE_HZ,
)


@dataclass(frozen=True, slots=True)
class Config:
    backend: Literal["file", "null"] = "file"
    # Not refused with `null`: a dataflow gives it to the sink, too.
    out_dir: str = setting("out", "folder for speaker.wav, relative to where dora run was called")
    pace: Literal["realtime", "fast"] = "realtime"
    pause_max_ms: int = setting(4000, "a pause ends by itself after this time", minimum=0)
    queue_max_s: int = setting(300, "seconds of audio that may wait in a session", minimum=5)


def build(config: Config) -> SpeakerStage:
    backend = FileSpeaker(user_path(config.out_dir)) if config.backend == "file" else NullSpeaker()
    return SpeakerStage(
        backend,
        is_fast=config.pace == "fast",
        longest_pause_ms=config.pause_max_ms,
        longest_queue_s=config.queue_max_s,
    )


def main(node: Any | None = None) -> None:
    """Console script `dora-voice-speaker`."""
    serve(build, Config, PORTS, node)
