"""What a voice is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from dora_voice.audio import Samples


@dataclass(frozen=True, slots=True)
class Speech:
    """The sound of a clause, whose length is known before it is made."""

    total_samples: int
    pieces: Iterator[Samples]
    """float32, shape (samples,); each is made when it is asked for."""


class Voice(Protocol):
    name: str
    """What was loaded, for the log."""
    rate_hz: int

    def speak(self, text: str) -> Speech:
        """Says a clause, at `rate_hz`."""
        ...
