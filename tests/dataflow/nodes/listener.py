"""A stage behind the slow one: writes down everything that it is given, in order."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from dora_voice.messages import Control, Message, Segment, Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports


@dataclass(frozen=True, slots=True)
class Config:
    pass


class Listener:
    def __init__(self) -> None:
        self.file = Path(os.environ["HEARD"]).open("w")  # noqa: SIM115 - open until close

    def process(self, message: Message) -> None:
        if isinstance(message, Text):
            self.file.write(json.dumps(["text", message.segment_id]) + "\n")

    def flushed(self, segment: Segment) -> None:
        self.file.write(json.dumps(["flush", segment.segment_id]) + "\n")

    def dropped(self, segment: Segment) -> None:
        self.file.write(json.dumps(["drop", segment.segment_id]) + "\n")

    def close(self) -> None:
        self.file.close()


serve(lambda config: Listener(), Config, Ports({"text": Text, "control": Control}, {}))
