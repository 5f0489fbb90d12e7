"""Replies without a model, for tests of whole graphs: deterministic, word by word."""

from __future__ import annotations

import re
from collections.abc import Generator

from dora_voice_llm.history import History, Turn

STORY = (
    "Once upon a time there was a small robot who lived in a lighthouse by the sea. Every evening it climbed the "
    "long stairs and lit the lamp. One night a storm put out all the lights on the coast, but the robot carried "
    "its own battery up the tower and kept the lamp burning until the morning. The sailors came home safely, and "
    "from then on they called the robot their friend."
)


class FakeBackend:
    def reply(self, session_id: str, history: History, turn: Turn) -> Generator[str | None, None, None]:
        yield from re.findall(r"\s*\S+", _answer(turn.user))

    def forget(self, session_id: str) -> None:
        pass


def _answer(user: str) -> str:
    if "story" in user.lower():
        return STORY
    return f"You said: {user}" if user[-1] in ".!?" else f"You said: {user}."
