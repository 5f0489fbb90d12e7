"""A transcript as a sentence: small models lose the capital at its start, and the question mark of a flat question."""

from __future__ import annotations

import re

_ENGLISH_QUESTION = re.compile(
    r"(who|whose|which)\b"
    r"|(what|when|where|why|how( \w+){0,2})"
    r"('s| is| are| was| were| do| does| did| can| could| will| would| has| have)\b",
    re.IGNORECASE,
)


def as_sentence(text: str, language: str) -> str:
    """`who wrote it.` becomes `Who wrote it?`. No word is changed."""
    text = text[:1].upper() + text[1:]
    if language == "en" and _ENGLISH_QUESTION.match(text) and re.fullmatch(r"[^.!?]*\.", text):
        return text[:-1] + "?"
    return text
