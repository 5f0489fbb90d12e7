"""Finds and loads the model that MODEL names."""

from __future__ import annotations

from pathlib import Path

from dora_voice.config import SetupError, user_path
from dora_voice_llm import weights
from dora_voice_llm.config import Config
from dora_voice_session import hf_model
from dora_voice_session.hf_model import HfModel


def load(config: Config) -> HfModel:
    """Loads and warms a chat model. Raises SetupError if it can't be had or can't hold a chat as it is set."""
    source = _source(config.model)
    try:
        loaded = hf_model.load(str(source), config.dtype, config.device, config.threads, config.decoder)
        loaded.render([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello."}])
    except Exception as error:
        raise SetupError(
            f"MODEL={config.model or source} can't be used with DTYPE={config.dtype}, DEVICE={config.device}, "
            f"DECODER={config.decoder}: {type(error).__name__}: {error}"
        ) from error
    return loaded


def name_of(model: str) -> str:
    """How the model is called in the log."""
    return Path(model).name or weights.NAME


def _source(model: str) -> Path | str:
    """The folder or hub id to load. Raises SetupError for a folder that isn't there."""
    if not model:
        return weights.installed()
    if (folder := user_path(model)).is_dir():
        return folder
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise SetupError(f"MODEL={model}: no such folder: expected a local folder or a hub id such as owner/name")
    return model
