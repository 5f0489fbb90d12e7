"""What the stages of a conversation exchange: small frozen dataclasses whose fields carry their units.

A field has the name of its key on the wire (see header.py); the payload is the first field of
each class (see arrow.py). A message that a stage yields may leave `session_id` and `segment_id`
out: the runtime fills in those of the message that is being processed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DEFAULT_SESSION = "default"
SOURCE_RATE_HZ = 16_000
SPEAKER_RATE_HZ = 24_000

VERBS = frozenset({"start", "pause", "resume", "commit", "flush", "drop", "end"})


class Segment(NamedTuple):
    """Names one utterance and everything computed from it."""

    session_id: str
    segment_id: int

    def is_older_than(self, other: Segment) -> bool:
        """Whether a flush that names `other` ends this one: same session, smaller id."""
        return self.session_id == other.session_id and self.segment_id < other.segment_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What every message carries. `port` is the input it came on, or the output it goes to."""

    port: str = ""
    session_id: str | None = None
    segment_id: int | None = None
    seq: int | None = None
    fin: bool = False
    flush: bool = False
    speculative: bool = False
    finish: bool = False
    error: str | None = None

    @property
    def segment(self) -> Segment:
        """The segment of an identified message. Raises ValueError before the runtime identified it."""
        if self.session_id is None or self.segment_id is None:
            raise ValueError(f"message on port {self.port!r} has no session_id or segment_id yet")
        return Segment(self.session_id, self.segment_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio(Message):
    """PCM: float32, mono, nominally in [-1, 1], shape (samples,)."""

    samples: NDArray[np.float32]
    sample_rate: int
    audio_ms: int | None = None
    text_start: int | None = None
    text_end: int | None = None
    continues: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Message):
    """A fragment of a transcript or of a reply; the span is in code points of the whole text."""

    text: str
    text_start: int | None = None
    text_end: int | None = None
    language: str | None = None
    rejected: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Control(Message):
    """One of VERBS, about the segment that the message names."""

    verb: str
    audio_ms: int | None = None
    continues: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played(Message):
    """Samples of the segment's reply heard so far, at 24 kHz; `text_end` is where in the text that is."""

    samples: int
    text_end: int | None = None


def is_bare_finish(message: Message) -> bool:
    """Whether a message says that its session is over, and nothing else. It belongs to no segment."""
    if not message.finish or message.fin:
        return False
    content = message.samples.size if isinstance(message, Audio) else getattr(message, "text", "")
    return not content
