"""What a voice is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from dora_voice.audio import Samples


class Voice(Protocol):
    name: str
    """What was loaded, for the log."""
    rate_hz: int

    def speak(self, text: str) -> Iterator[Samples]:
        """The sound of a clause, in one piece or several: float32, shape (samples,), at `rate_hz`."""
        ...
