from dataclasses import dataclass
from typing import Literal

import pytest

from dora_voice.config import ConfigError, from_env, setting, user_path


@dataclass(frozen=True, slots=True)
class Config:
    backend: Literal["piper", "fake"] = "piper"
    voice: str = setting("", "a voice", backends=("piper",))
    threads: int = setting(2, "threads", minimum=1, maximum=64)
    speed: float = setting(1.0, "speed", minimum=0.1)
    fast: bool = False


def test_defaults_stand_where_nothing_or_an_empty_text_is_given():
    assert from_env(Config, {"VOICE": "", "THREADS": " "}) == Config()


def test_every_kind_of_setting_is_read():
    env = {"VOICE": "x.onnx", "THREADS": "3", "SPEED": "1.5", "FAST": "True", "OTHER": "1"}
    assert from_env(Config, env) == Config(voice="x.onnx", threads=3, speed=1.5, fast=True)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"BACKEND": "pipr"}, "BACKEND='pipr': expected one of piper, fake"),
        ({"THREADS": "two"}, "THREADS='two': expected a whole number from 1 to 64"),
        ({"THREADS": "0"}, "THREADS='0'"),
        ({"THREADS": "65"}, "THREADS='65'"),
        ({"SPEED": "nan"}, "SPEED='nan': expected a number"),
        ({"FAST": "perhaps"}, "FAST='perhaps': expected true or false"),
        ({"BACKEND": "fake", "VOICE": "x"}, "VOICE has no effect with BACKEND=fake"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(env, said):
    with pytest.raises(ConfigError, match="^" + said.replace(".", "[.]")):
        from_env(Config, env)


def test_paths_are_relative_to_where_the_user_stands(tmp_path, monkeypatch):
    monkeypatch.delenv("DORA_RUN_PARENT_PID", raising=False)
    monkeypatch.chdir(tmp_path)
    assert user_path("a b.wav") == tmp_path / "a b.wav"
    assert str(user_path("/x/y.wav")) == "/x/y.wav"
