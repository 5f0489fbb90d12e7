"""How long a silence may be before the user has finished."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

FINISHED = re.compile(r"[.!?…。！？]['\")\]”’»」』）]*$")
"""How a recogniser writes the end of a sentence. Three dots are a hesitation."""
HESITATING = re.compile(r"(\.\.\.|…|[,;:，；：、—–-])$")
LEADING_ON = frozenset(
    re.findall(
        r"\w+",
        "a and as because but for from i if into my of or our the their to uh um whether while with would your "
        "aber dass dem den der die eine einen für ich mein und von weil wenn zum zur",
    )
)
"""English and German words that hardly ever end a sentence. What ends one in either language isn't among them."""
STRANDED = frozenset({"for", "from", "i", "into", "of", "to", "with"})
"""Those that end many a question: what is it made of?"""
SOUNDS_UNFINISHED = 0.1
"""An utterance less probably finished than that goes on. Measured (README): none of 51 whole ones was."""


class Patience(Protocol):
    def silence_ms(self, text: str | None, sounds_finished: float | None) -> int:
        """The silence that ends an utterance that says this and sounds finished with this probability.

        None while, or where, it isn't known.
        """
        ...


@dataclass(frozen=True, slots=True)
class FixedSilence:
    end_silence_ms: int

    def silence_ms(self, text: str | None, sounds_finished: float | None) -> int:
        return self.end_silence_ms


@dataclass(frozen=True, slots=True)
class SentenceAware:
    """Short after a sentence that is finished, long after one that isn't, in between where that isn't known.

    Its sound is a hint: it can tell that a sentence goes on, but not that it doesn't.
    """

    finished_ms: int
    unknown_ms: int
    unfinished_ms: int

    def silence_ms(self, text: str | None, sounds_finished: float | None) -> int:
        if sounds_finished is not None and sounds_finished < SOUNDS_UNFINISHED:
            return self.unfinished_ms
        if not text or not text.strip():
            return self.unknown_ms
        return self.finished_ms if is_finished(text) else self.unfinished_ms


def is_finished(text: str) -> bool:
    """Whether a transcript reads like a whole sentence.

    Recognisers put a full stop behind anything, so the last word counts, too.
    """
    text = text.strip()
    end = FINISHED.search(text)
    if HESITATING.search(text) or not end:
        return False
    words = re.findall(r"[\w']+", text.lower())
    leading_on = LEADING_ON - STRANDED if end[0].startswith(("?", "？")) else LEADING_ON
    return not words or words[-1] not in leading_on
