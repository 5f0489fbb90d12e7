"""What a speech recogniser is, and what it says about a recording."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from dora_voice.audio import Samples
from dora_voice.messages import Segment


@dataclass(frozen=True, slots=True)
class Transcript:
    """The words, and how sure the model is of them."""

    text: str
    language: str
    no_speech_probability: float = 0.0
    average_log_probability: float = 0.0
    """Of the tokens of `text` and of its end, natural logarithm: 0.0 is certain."""

    @property
    def compression_ratio(self) -> float:
        """How much shorter zlib makes the text: high where the same words come again and again."""
        raw = self.text.encode()
        return len(raw) / len(zlib.compress(raw))


class Recognizer(Protocol):
    name: str
    """What was loaded, for the log."""

    def transcribe(self, samples: Samples, segment: Segment) -> Transcript:
        """`samples`: a whole utterance, 16 kHz, shape (samples,), not empty, at most 30 s.

        `segment` says which utterance it is. A model doesn't care.
        """
        ...

    def guess(self, samples: Samples, segment: Segment) -> Iterator[Transcript | None]:
        """A quick transcript of an utterance that goes on, after a None wherever it can be given up."""
        ...
