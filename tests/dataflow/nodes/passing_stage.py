"""A stage that passes on what it is given."""

from dataclasses import dataclass, replace

from dora_voice.messages import Message, Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports


@dataclass(frozen=True, slots=True)
class Config:
    pass


class Passing:
    def process(self, message: Message):
        yield replace(message, port="text")


serve(lambda config: Passing(), Config, Ports({"text": Text}, {"text": Text}, reply="text", ends_with=("text",)))
