"""What the node answers with, from its settings."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from dora_voice.config import SetupError, user_path
from dora_voice_llm.config import Config
from dora_voice_llm.fake_model import FakeModel
from dora_voice_session.model import ChatModel
from dora_voice_session.pool import Limits
from dora_voice_session.refused import RefusedError
from dora_voice_session.room import check_room
from dora_voice_session.schema import LONGEST_STOP, MOST_STOPS, Generation, SessionSettings

log = logging.getLogger("dora_voice.llm")

FAKE_CONTEXT_TOKENS, FAKE_REPLY_TOKENS = 2**20, 2**16


@dataclass(frozen=True, slots=True)
class Service:
    """`settings` are those of a session that asks for no others."""

    model: ChatModel
    name: str
    limits: Limits
    settings: SessionSettings
    history_folder: Path
    """Where the committed history of a run is kept, for a restart."""


def build_service(config: Config) -> Service:
    """Loads what the settings name. Raises SetupError."""
    if config.backend == "fake":
        limits = Limits(FAKE_CONTEXT_TOKENS, most_sessions=config.sessions, idle_s=config.session_idle_s)
        settings = SessionSettings(generation=Generation(max_new_tokens=FAKE_REPLY_TOKENS))
        return Service(FakeModel(), "the fake model", limits, settings, _history_folder(config))
    from dora_voice_llm import loading

    began_s = time.monotonic()
    model = loading.load(config)
    name = loading.name_of(config.model)
    limits = _limits(config, model)
    log.info(
        "loaded %s (%s on %s, decoder %s, %d threads, %d tokens of context) in %.1f s",
        *(name, model.dtype, model.device, model.decoder, model.threads, limits.context_tokens),
        time.monotonic() - began_s,
    )
    settings = _settings(config)
    try:
        check_room(model, settings, limits.context_tokens)
    except RefusedError as refused:
        raise SetupError(
            f"CONTEXT_TOKENS={config.context_tokens}, MAX_REPLY_TOKENS={config.max_reply_tokens}, SYSTEM_PROMPT: "
            f"{refused}"
        ) from refused
    return Service(model, name, limits, settings, _history_folder(config))


def _limits(config: Config, model: ChatModel) -> Limits:
    context_tokens = min(config.context_tokens, model.most_positions or config.context_tokens)
    if 2 * config.max_reply_tokens > context_tokens:
        raise SetupError(
            f"MAX_REPLY_TOKENS={config.max_reply_tokens}: expected at most half of the context "
            f"of {context_tokens} tokens"
        )
    budget_bytes = config.kv_budget_mb * 2**20
    if (needed := model.cache_bytes(context_tokens)) > budget_bytes:
        raise SetupError(
            f"KV_BUDGET_MB={config.kv_budget_mb}: the context of {context_tokens} tokens alone takes "
            f"{needed / 2**20:.0f} MB: expected at least that, or fewer CONTEXT_TOKENS"
        )
    return Limits(context_tokens, budget_bytes, most_sessions=config.sessions, idle_s=config.session_idle_s)


def _settings(config: Config) -> SessionSettings:
    generation = Generation(
        max_new_tokens=config.max_reply_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        repetition_penalty=config.repetition_penalty,
        length_penalty=config.length_penalty,
        stop=_stop_texts(config),
        seed=config.seed if config.seed >= 0 else None,
    )
    return SessionSettings(
        system_prompt=config.system_prompt, language=config.reply_language or None, generation=generation
    )


def _stop_texts(config: Config) -> list[str]:
    texts = [text for text in config.stop.split("|") if text]
    if len(texts) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in texts):
        raise SetupError(f"STOP: expected at most {MOST_STOPS} texts of up to {LONGEST_STOP} characters each")
    return texts


def _history_folder(config: Config) -> Path:
    if config.history_dir:
        return user_path(config.history_dir)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state", "dora-voice")
