"""The guesses of one growing utterance: when the next is due, and how far two of them agree."""

from __future__ import annotations

import re

from dora_voice.messages import SOURCE_RATE_HZ

# Chinese and Japanese are written without spaces: there every character counts as a word.
_WORD = re.compile(r"\s*(?:[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+)")


class Hypotheses:
    """Time is sound that was heard: a guess is due after every `every_ms` of it. With 0 none ever is."""

    def __init__(self, every_ms: int, heard_samples: int = 0) -> None:
        """`heard_samples`: what was heard before this utterance began."""
        self._every_samples = every_ms * SOURCE_RATE_HZ // 1000
        self._heard_samples = heard_samples
        self._text, self._agreed = "", 0

    def new_samples(self, heard_samples: int) -> int:
        """How much has been heard since the last guess."""
        return heard_samples - self._heard_samples

    def is_due(self, heard_samples: int) -> bool:
        return 0 < self._every_samples <= self.new_samples(heard_samples)

    def begin(self, heard_samples: int) -> None:
        """A guess of all that was heard so far is being made."""
        self._heard_samples = heard_samples

    def revise(self, text: str) -> int | None:
        """The code points of `text` that this guess and the last agree on; None if that was said already."""
        said, agreed = (self._text, self._agreed), agreement(self._text, text)
        self._text, self._agreed = text, agreed
        return None if said == (text, agreed) else agreed


def agreement(before: str, now: str) -> int:
    """Where in `now` the first words that both have end, in code points."""
    end = 0
    for ours, theirs in zip(_WORD.finditer(now), _WORD.finditer(before), strict=False):
        if ours[0] != theirs[0]:
            break
        end = ours.end()
    return end
