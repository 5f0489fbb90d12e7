"""A voice without a model, for tests of whole graphs: a tone, the longer the more there is to say."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dora_voice.audio import Samples
from dora_voice.messages import SPEAKER_RATE_HZ

MS_PER_CHARACTER = 60
TONE_HZ = 200
LEVEL = 0.3


class FakeVoice:
    name = "fake"
    rate_hz = SPEAKER_RATE_HZ

    def speak(self, text: str) -> Iterator[Samples]:
        # Whole periods, so that one clause joins the next without a click.
        n = np.arange(len(text) * MS_PER_CHARACTER * self.rate_hz // 1000)
        yield (LEVEL * np.sin(2 * math.pi * TONE_HZ / self.rate_hz * n)).astype(np.float32)
