"""A stage that yields every 20 ms, and writes down when its generator is closed."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from dora_voice.messages import Control, Message, Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports


@dataclass(frozen=True, slots=True)
class Config:
    pass


class Slow:
    def process(self, message: Message):
        if not isinstance(message, Text):
            return
        try:
            for n in range(100):
                time.sleep(0.02)
                yield Text(port="text", text=f"{n}")
            yield Text(port="text", text="", fin=True)
        except GeneratorExit:
            with Path(os.environ["CLOSED"]).open("a") as closed:
                closed.write(f"{message.segment_id}\n")
            raise


serve(lambda config: Slow(), Config, Ports({"text": Text, "control": Control}, {"text": Text}, reply="text"))
