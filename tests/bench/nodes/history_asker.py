"""A node that asks the llm for its history once the reply to an interruption is being played, and writes it down.

By then the llm has settled what was heard of the old reply, and the end of the session is far: it forgets it all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dora_voice.messages import Control, Message, Played, Segment, Text
from dora_voice.runtime import serve
from dora_voice.stage import Ports, Work

# By `control` alone it ends: the llm waits for the end of `request`, and the speaker for that of the llm.
PORTS = Ports(
    inputs={"control": Control, "played": Played, "result": Text},
    outputs={"request": Text},
    feedback=frozenset({"played", "result"}),
)


@dataclass(frozen=True, slots=True)
class Config:
    history_out: str = "history.json"
    """File for the result, one JSON document."""


class HistoryAsker:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._interruption: Segment | None = None
        self._has_asked = False

    def flushed(self, segment: Segment) -> None:
        self._interruption = segment

    def process(self, message: Message) -> Work | None:
        if isinstance(message, Played) and not self._has_asked and self._is_of_the_answer(message):
            return self._ask(message.segment.session_id)
        if isinstance(message, Text):
            self._file.write_text(message.text)
        return None

    def _is_of_the_answer(self, played: Played) -> bool:
        interruption = self._interruption
        return bool(interruption and played.samples and not played.segment.is_older_than(interruption))

    def _ask(self, session_id: str) -> Work:
        self._has_asked = True
        yield Text(port="request", text=json.dumps({"type": "history", "session_id": session_id}), fin=True)


if __name__ == "__main__":
    serve(lambda config: HistoryAsker(Path(config.history_out)), Config, PORTS)
