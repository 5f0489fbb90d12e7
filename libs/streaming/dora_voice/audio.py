"""PCM in pieces: fixed-size chunks, another sample rate, int16. State is carried from piece to piece.

Samples are float32, mono, nominally in [-1, 1], shape (samples,), unless a name says int16.
"""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray

Samples = NDArray[np.float32]

EMPTY: Samples = np.zeros(0, dtype=np.float32)
EMPTY.setflags(write=False)

INT16_FULL_SCALE = 32_768


class Rechunker:
    """Turns pieces of any size into chunks of exactly `chunk_samples`."""

    def __init__(self, chunk_samples: int) -> None:
        if chunk_samples < 1:
            raise ValueError(f"chunk_samples={chunk_samples}: expected at least 1")
        self._chunk_samples = chunk_samples
        self._pieces: list[Samples] = []
        self._held_samples = 0

    def feed(self, samples: Samples) -> list[Samples]:
        """The chunks that became complete; the rest waits for the next piece."""
        if not len(samples):
            return []
        self._pieces.append(samples)
        self._held_samples += len(samples)
        if self._held_samples < self._chunk_samples:
            return []
        held = np.concatenate(self._pieces)
        end = len(held) - len(held) % self._chunk_samples
        # A copy, so that a short rest doesn't keep a long piece alive.
        self._pieces, self._held_samples = [held[end:].copy()], len(held) - end
        return [held[start : start + self._chunk_samples] for start in range(0, end, self._chunk_samples)]

    def flush(self) -> Samples:
        """The rest, shorter than a chunk and maybe empty. The next piece starts afresh."""
        rest = np.concatenate([EMPTY, *self._pieces])
        self._pieces, self._held_samples = [], 0
        return rest


class Resampler:
    """Converts a stream from one sample rate to another. Equal rates pass through unchanged."""

    def __init__(self, from_hz: int, to_hz: int) -> None:
        if from_hz < 1 or to_hz < 1:
            raise ValueError(f"can't resample from {from_hz} Hz to {to_hz} Hz: expected rates of at least 1 Hz")
        self._stream = None if from_hz == to_hz else soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32")

    def process(self, samples: Samples) -> Samples:
        """What can be said so far of the converted stream; its end comes with later pieces or `flush`."""
        return samples if self._stream is None else self._stream.resample_chunk(samples)

    def flush(self) -> Samples:
        """The converted stream's last samples. The next piece starts afresh."""
        if self._stream is None:
            return EMPTY
        rest = self._stream.resample_chunk(EMPTY, last=True)
        self._stream.clear()
        return rest


class RateConverter:
    """Converts a stream to one sample rate, whatever rate its pieces have."""

    def __init__(self, to_hz: int) -> None:
        self._to_hz = to_hz
        self._from_hz = to_hz
        self._resampler = Resampler(to_hz, to_hz)

    def process(self, samples: Samples, from_hz: int) -> Samples:
        """What can be said so far of the converted stream."""
        if from_hz == self._from_hz:
            return self._resampler.process(samples)
        rest = self._resampler.flush()
        self._resampler, self._from_hz = Resampler(from_hz, self._to_hz), from_hz
        return np.concatenate([rest, self._resampler.process(samples)])

    def flush(self) -> Samples:
        """The converted stream's last samples. The next piece starts afresh."""
        return self._resampler.flush()


def resample(samples: Samples, from_hz: int, to_hz: int) -> Samples:
    """A whole recording at another sample rate."""
    resampler = Resampler(from_hz, to_hz)
    return np.concatenate([resampler.process(samples), resampler.flush()])


def to_int16(samples: Samples) -> NDArray[np.int16]:
    """Rounds to the nearest step and clips what is too loud."""
    return np.clip(np.rint(samples * INT16_FULL_SCALE), -INT16_FULL_SCALE, INT16_FULL_SCALE - 1).astype(np.int16)


def from_int16(samples: NDArray[np.int16]) -> Samples:
    """Exact: `to_int16` gives the same samples back."""
    return samples.astype(np.float32) / np.float32(INT16_FULL_SCALE)
