"""Finds utterances in a recording before they are sent, by nothing but loudness."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from dora_voice.audio import Samples

QUIETEST_LEVEL = 0.003
"""Root mean square below which sound is never speech: -50 dB."""
ABOVE_NOISE = 3.0
NOISE_RISE = 1.01
"""Per chunk: the noise level follows a minimum at once, and forgets it within seconds."""
QUIET_CHUNKS = 15
LEAD_CHUNKS = 5
"""How much earlier the beginning is put than where the sound gets loud: soft consonants come first."""


def mark_onsets(chunks: Iterable[Samples]) -> Iterator[tuple[Samples, bool]]:
    """Each chunk of 20 ms, and whether something loud begins shortly after its start, after 300 ms of quiet.

    Looks `LEAD_CHUNKS` ahead.
    """
    ahead: deque[tuple[Samples, bool]] = deque()
    noise, quiet_chunks = 1.0, QUIET_CHUNKS
    for chunk in chunks:
        level = _level(chunk)
        noise = min(level, max(noise, QUIETEST_LEVEL / ABOVE_NOISE) * NOISE_RISE)
        is_loud = level > max(QUIETEST_LEVEL, noise * ABOVE_NOISE)
        ahead.append((chunk, False))
        if is_loud and quiet_chunks >= QUIET_CHUNKS:
            ahead[0] = (ahead[0][0], True)
        quiet_chunks = 0 if is_loud else quiet_chunks + 1
        if len(ahead) > LEAD_CHUNKS:
            yield ahead.popleft()
    yield from ahead


def _level(chunk: Samples) -> float:
    return float(np.sqrt(np.mean(np.square(chunk, dtype=np.float64))))
