"""What a voice is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from dora_voice.audio import Samples


@dataclass(frozen=True, slots=True)
class Speech:
    """The sound of a clause, whose length is known before it is made."""

    total_samples: int
    pieces: Iterator[Samples]
    """float32, shape (samples,); each is made when it is asked for."""


Begun = Any
"""What a voice remembers of a clause that it has begun; only the same voice can read it."""


class Voice(Protocol):
    name: str
    """What was loaded, for the log."""
    rate_hz: int

    def speak(self, text: str, begun: Begun | None = None) -> Speech:
        """Says a clause, at `rate_hz`; or what it has not said of it when it began."""
        ...

    def begin(self, words: str, next_word: str, begun: Begun | None) -> tuple[Speech, Begun] | None:
        """Says the first words of a clause that isn't complete, or more of them; None if it can't.

        next_word: may be incomplete. It isn't said, but colours how the others are. The speech may be a little longer
        than its pieces: the rest comes with what follows.
        """
        ...
