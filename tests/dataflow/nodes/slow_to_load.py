"""A node whose model takes very long to load."""

import time
from dataclasses import dataclass

from dora_voice.messages import Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports


@dataclass(frozen=True, slots=True)
class Config:
    pass


def build(config: Config):
    print("loading", flush=True)
    time.sleep(600)


serve(build, Config, Ports({"text": Text}, {"text": Text}))
