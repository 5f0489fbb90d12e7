"""The sound of replies, as clients get it."""

from __future__ import annotations

import base64

import numpy as np

from dora_voice.audio import EMPTY, Samples


class Sound:
    """Collects sound into pieces of at least this length; None: into one."""

    def __init__(self, piece_samples: int | None) -> None:
        self.total_samples = 0
        self._piece_samples = piece_samples
        self._waiting: list[Samples] = []
        self._waiting_samples = 0

    def add(self, samples: Samples) -> list[Samples]:
        """The piece that is complete now, if one is."""
        self._waiting.append(samples)
        self._waiting_samples += len(samples)
        self.total_samples += len(samples)
        is_full = self._piece_samples is not None and self._waiting_samples >= self._piece_samples
        return [self.rest()] if is_full else []

    def rest(self) -> Samples:
        """What is in no piece yet."""
        rest = np.concatenate([EMPTY, *self._waiting])
        self._waiting, self._waiting_samples = [], 0
        return rest


def pcm(samples: Samples) -> str:
    """float32, little-endian, base64."""
    return base64.b64encode(samples.astype("<f4").tobytes()).decode()
