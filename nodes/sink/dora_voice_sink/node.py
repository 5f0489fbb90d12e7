"""dora-voice-sink: writes down the conversation, and shows it on the terminal."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any

from dora_voice.config import setting, user_path
from dora_voice.messages import SPEAKER_RATE_HZ, Audio, Control, Played, Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports
from dora_voice_sink.files import Journal, ReplyFiles
from dora_voice_sink.stage import SinkStage

PORTS = Ports(
    inputs={
        "user_text": Text,
        "hypothesis": Text,
        "reply_text": Text,
        "reply_audio": Audio,
        "played": Played,
        "control": Control,
    },
    outputs={},
    ends_with=("played", "reply_audio", "reply_text", "user_text"),
    unordered=frozenset({"user_text", "hypothesis", "reply_text", "reply_audio", "played"}),
    rate_hz=SPEAKER_RATE_HZ,
    remembered=frozenset({"user_text"}),
    records=True,
)


@dataclass(frozen=True, slots=True)
class Config:
    out_dir: str = setting("out", "folder for the files, relative to where dora run was called")


def build(config: Config) -> SinkStage:
    folder = user_path(config.out_dir)
    return SinkStage(Journal(folder), ReplyFiles(folder))


def main(node: Any | None = None) -> None:
    """Console script `dora-voice-sink`."""
    if isinstance(sys.stdout, TextIOWrapper):
        # A terminal that can't show a letter is no reason to stop.
        sys.stdout.reconfigure(errors="replace")
    serve(build, Config, PORTS, node)
