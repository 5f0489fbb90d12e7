"""Says what it is told to, one character at a time, and stops when it is interrupted."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from dora_voice.messages import Control, Message, Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports

PORTS = Ports(inputs={"text": Text, "control": Control}, outputs={"text": Text}, reply="text", ends_with=("text",))


@dataclass(frozen=True, slots=True)
class Config:
    pass


class Storyteller:
    def __init__(self, config: Config) -> None:
        pass

    def process(self, message: Message) -> Iterator[Message]:
        if isinstance(message, Text):
            for character in message.text:
                time.sleep(0.2)
                yield Text(port="text", text=character)  # an interruption ends this here
            yield Text(port="text", text="", fin=message.fin)


if __name__ == "__main__":
    serve(Storyteller, Config, PORTS)
