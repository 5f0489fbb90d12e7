"""dora-voice-llm: answers what the user said, streaming, with a history that holds what was heard."""

from __future__ import annotations

from typing import Any

from dora_voice.messages import Control, Played, Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports
from dora_voice_llm.config import Config
from dora_voice_llm.service import build_service
from dora_voice_llm.stage import LlmStage

PORTS = Ports(
    inputs={
        "text": Text,
        "hypothesis": Text,
        "control": Control,
        "client_control": Control,
        "played": Played,
        "request": Text,
    },
    outputs={"text": Text, "result": Text},
    reply="text",
    feedback=frozenset({"hypothesis", "played"}),
    ends_with=("text", "request"),
    concurrent=frozenset({"request"}),
    remembered=frozenset({"text"}),
)


def build(config: Config) -> LlmStage:
    return LlmStage(build_service(config))


def main(node: Any | None = None) -> None:
    """Console script `dora-voice-llm`."""
    serve(build, Config, PORTS, node)
