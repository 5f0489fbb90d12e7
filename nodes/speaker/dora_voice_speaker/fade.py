"""How sound begins and stops without a click."""

from __future__ import annotations

import numpy as np

from dora_voice.audio import Samples
from dora_voice.messages import SPEAKER_RATE_HZ

FADE_SAMPLES = SPEAKER_RATE_HZ // 100


def faded_out(samples: Samples) -> Samples:
    """Down to zero at the last of `samples`."""
    return samples * np.linspace(1, 0, len(samples) + 1, dtype=np.float32)[1:]


def faded_in(samples: Samples) -> Samples:
    """Up to the full level after the last of `samples`, at most FADE_SAMPLES; before fewer there was silence."""
    return samples * np.linspace(0, 1, FADE_SAMPLES + 1, dtype=np.float32)[FADE_SAMPLES - len(samples) : -1]
