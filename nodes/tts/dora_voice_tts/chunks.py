"""Sound of any rate, in chunks of 20 ms of 24 kHz."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dora_voice.audio import RateConverter, Rechunker, Samples
from dora_voice.messages import SPEAKER_RATE_HZ

CHUNK_SAMPLES = SPEAKER_RATE_HZ * 20 // 1000


class Chunks:
    """What goes on where it stopped."""

    def __init__(self) -> None:
        self._converter, self._rechunker = RateConverter(SPEAKER_RATE_HZ), Rechunker(CHUNK_SAMPLES)

    def feed(self, pieces: Iterator[Samples], rate_hz: int) -> Iterator[Samples]:
        """Each chunk as soon as it is complete."""
        for piece in pieces:
            yield from self._rechunker.feed(self._converter.process(piece, rate_hz))

    def flush(self) -> Iterator[Samples]:
        """The last ones, filled up with silence."""
        yield from self._rechunker.feed(self._converter.flush())
        if (rest := self._rechunker.flush()).size:
            yield np.pad(rest, (0, CHUNK_SAMPLES - len(rest)))
