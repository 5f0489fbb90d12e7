"""dora-voice-llm: answers what the user said, streaming, with a history that holds what was heard."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, Literal

from dora_voice.config import setting
from dora_voice.messages import Control, Played, Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports
from dora_voice_llm.fake_backend import FakeBackend
from dora_voice_llm.stage import LlmStage

log = logging.getLogger("dora_voice.llm")

PORTS = Ports(
    inputs={"text": Text, "control": Control, "played": Played},
    outputs={"text": Text},
    reply="text",
    feedback=frozenset({"played"}),
    ends_with=("text",),
    remembered=frozenset({"text"}),
)
SYSTEM_PROMPT = "You are a helpful talking robot. Give short and correct spoken answers in plain sentences."
MODEL_ONLY = ("transformers",)


@dataclass(frozen=True, slots=True)
class Config:
    backend: Literal["transformers", "fake"] = "transformers"
    model: str = setting("", "chat model: a local folder or a hub id; empty for the default one", backends=MODEL_ONLY)
    dtype: Literal["bf16", "fp32"] = setting("bf16", "number format", backends=MODEL_ONLY)
    threads: int = setting(2, "compute threads", minimum=1, backends=MODEL_ONLY)
    system_prompt: str = setting(SYSTEM_PROMPT, "what the model is told first", backends=MODEL_ONLY)
    max_reply_tokens: int = setting(
        120, "a reply stops at its first sentence end after half of this, or then", minimum=1, backends=MODEL_ONLY
    )
    context_tokens: int = setting(
        2048, "longest prompt and reply together, if the model can do that", minimum=64, backends=MODEL_ONLY
    )


def build(config: Config) -> LlmStage:
    if config.backend == "fake":
        return LlmStage(FakeBackend())
    from dora_voice_llm.transformers_backend import Limits, load

    began_s = time.monotonic()
    limits = Limits(config.context_tokens, config.max_reply_tokens)
    backend = load(config.model, config.dtype, config.threads, config.system_prompt, limits)
    log.info("loaded %s in %.1f s", backend.name, time.monotonic() - began_s)
    return LlmStage(backend)


def main(node: Any | None = None) -> None:
    """Console script `dora-voice-llm`."""
    serve(build, Config, PORTS, node)
