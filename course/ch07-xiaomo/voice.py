"""小莫's voice: says sentences character by character, and stops when it is interrupted."""

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


class Voice:
    def __init__(self, config: Config) -> None:
        pass

    def process(self, message: Message) -> Iterator[Message | None]:
        if isinstance(message, Text):
            for number, character in enumerate(message.text, start=1):
                time.sleep(0.05)
                yield Text(port="text", text=character, fin=number == len(message.text))
                if character == "，":
                    for _ in range(20):  # it takes a breath; an interruption ends that, too
                        time.sleep(0.05)
                        yield None


if __name__ == "__main__":
    serve(Voice, Config, PORTS)
