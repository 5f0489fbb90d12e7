"""A node's settings: a frozen dataclass read from the environment.

    @dataclass(frozen=True, slots=True)
    class Config:
        backend: Literal["piper", "fake"] = "piper"
        voice: str = setting("", "voice file, or empty for the one that comes with the package", backends=("piper",))
        threads: int = setting(2, "compute threads", minimum=1)

The field `voice` is read from VOICE. An empty variable counts as unset.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Mapping
from dataclasses import Field, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

T = TypeVar("T")

TRUE = {"true", "1", "yes", "on"}
FALSE = {"false", "0", "no", "off"}


class ConfigError(ValueError):
    """A setting can't be used. Says which one, its value, and what was expected."""


class SetupError(RuntimeError):
    """Something the node needs isn't installed. Says what, and the command that installs it."""


def setting(
    default: Any,
    description: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    backends: tuple[str, ...] | None = None,
) -> Any:
    """A dataclass field with limits; `backends` names those with which it has an effect."""
    limits = {"description": description, "minimum": minimum, "maximum": maximum, "backends": backends}
    return field(default=default, metadata=limits)


def from_env(config_type: type[T], env: Mapping[str, str] | None = None) -> T:
    """Reads every field of `config_type` from `env`. Raises ConfigError naming the setting."""
    env = os.environ if env is None else env
    hints = typing.get_type_hints(config_type)
    given = {f: raw for f in fields(config_type) if (raw := env.get(f.name.upper(), "").strip())}  # type: ignore[arg-type]
    config = config_type(**{f.name: _read(f, hints[f.name], raw) for f, raw in given.items()})
    backend = getattr(config, "backend", None)
    for f in given:
        backends = f.metadata.get("backends")
        if backends and backend not in backends:
            other = " or ".join(backends)
            raise ConfigError(
                f"{f.name.upper()} has no effect with BACKEND={backend}: unset it, or use BACKEND={other}"
            )
    return config


def user_path(path: str) -> Path:
    """A path as the user meant it: relative to where `dora run` was called, not to the dataflow's folder."""
    return Path(_users_folder(), Path(path).expanduser())


def cache_folder() -> Path:
    """Where nodes keep what they have made once: DORA_VOICE_CACHE, else a folder in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("DORA_VOICE_CACHE") or Path(cache, "dora-voice"))


def _users_folder() -> Path:
    # dora starts nodes in the dataflow's folder, but tells them the process that the user started.
    caller = Path("/proc", os.environ.get("DORA_RUN_PARENT_PID", "none"), "cwd")
    try:
        return caller.readlink()
    except OSError:
        return Path.cwd()


def _read(f: Field[Any], hint: Any, raw: str) -> Any:
    name = f.name.upper()
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if raw not in choices:
            raise ConfigError(f"{name}={raw!r}: expected one of {', '.join(choices)}")
        return raw
    if hint is bool:
        if raw.lower() not in TRUE | FALSE:
            raise ConfigError(f"{name}={raw!r}: expected true or false")
        return raw.lower() in TRUE
    if hint in (int, float):
        return _read_number(name, hint, raw, f.metadata)
    return raw


def _read_number(name: str, kind: type, raw: str, limits: Mapping[str, Any]) -> float:
    minimum, maximum = limits.get("minimum"), limits.get("maximum")
    expected = {int: "a whole number", float: "a number"}[kind]
    if minimum is not None and maximum is not None:
        expected += f" from {minimum} to {maximum}"
    elif minimum is not None:
        expected += f" of at least {minimum}"
    try:
        value = kind(raw)
    except ValueError:
        raise ConfigError(f"{name}={raw!r}: expected {expected}") from None
    if not (value == value and (minimum is None or value >= minimum) and (maximum is None or value <= maximum)):
        raise ConfigError(f"{name}={raw!r}: expected {expected}")
    return value
