"""Answers a text, but kills its process with -9 in the middle of a "crash"."""

import os
import signal
from dataclasses import dataclass

from dora_voice.messages import Message, Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports


@dataclass(frozen=True, slots=True)
class Config:
    pass


class Crashing:
    def process(self, message: Message):
        yield Text(port="text", text="begun")
        if isinstance(message, Text) and message.text == "crash":
            yield None
            os.kill(os.getpid(), signal.SIGKILL)
        yield Text(port="text", text="done", fin=True)


serve(lambda config: Crashing(), Config, Ports({"text": Text}, {"text": Text}, reply="text", ends_with=("text",)))
