"""The llm node's settings, read from the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dora_voice.config import setting

SYSTEM_PROMPT = "You are a helpful talking robot. Give short and correct spoken answers in plain sentences."
MODEL_ONLY = ("transformers",)


@dataclass(frozen=True, slots=True)
class Config:
    backend: Literal["transformers", "fake"] = "transformers"
    model: str = setting("", "chat model: a local folder or a hub id; empty: the default one", backends=MODEL_ONLY)
    dtype: Literal["auto", "int4", "bf16", "fp32"] = setting("auto", "number format", backends=MODEL_ONLY)
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where the model computes", backends=MODEL_ONLY)
    decoder: Literal["auto", "transformers"] = setting(
        "auto", "auto decodes int4 of a Llama without transformers", backends=MODEL_ONLY
    )
    threads: int = setting(0, "compute threads; 0: what is fastest here", minimum=0, backends=MODEL_ONLY)
    system_prompt: str = setting(SYSTEM_PROMPT, "what the model is told first", backends=MODEL_ONLY)
    reply_language: str = setting(
        "", "language of the replies, e.g. de; empty: the model's choice", backends=MODEL_ONLY
    )
    max_reply_tokens: int = setting(
        120, "a reply stops at its first sentence end after half of this, or then", minimum=1, backends=MODEL_ONLY
    )
    temperature: float = setting(0.0, "0: always the likeliest token", minimum=0, maximum=10, backends=MODEL_ONLY)
    top_p: float = setting(
        1.0,
        "only the likeliest tokens that have this probability together",
        minimum=0.001,
        maximum=1,
        backends=MODEL_ONLY,
    )
    top_k: int = setting(0, "only so many of the likeliest tokens; 0: all", minimum=0, backends=MODEL_ONLY)
    repetition_penalty: float = setting(
        1.1, "above 1: the reply repeats itself less", minimum=0.1, maximum=10, backends=MODEL_ONLY
    )
    length_penalty: float = setting(1.0, "above 1: replies get longer", minimum=0.1, maximum=10, backends=MODEL_ONLY)
    stop: str = setting("", "texts before which a reply ends, with | in between", backends=MODEL_ONLY)
    seed: int = setting(-1, "makes sampling repeatable; -1: another every time", minimum=-1, backends=MODEL_ONLY)
    context_tokens: int = setting(
        2048, "longest prompt and reply together, if the model can do that", minimum=64, backends=MODEL_ONLY
    )
    kv_budget_mb: int = setting(512, "memory for the caches of all sessions", minimum=1, backends=MODEL_ONLY)
    sessions: int = setting(64, "most sessions at the same time", minimum=1)
    session_idle_s: float = setting(1800.0, "a session that isn't used for so long is ended", minimum=1)
    history_dir: str = setting("", "where the history is kept for a restart; empty: the user's state folder")
