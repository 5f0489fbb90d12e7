"""Tells by its loudness whether the speaker is pausing just now."""

from __future__ import annotations

import numpy as np

from dora_voice.audio import Samples
from dora_voice.messages import SOURCE_RATE_HZ

FRAME_SAMPLES = SOURCE_RATE_HZ // 10
FRAMES = 30
QUIET = 0.1


def is_pausing(samples: Samples) -> bool:
    """Whether the last 0.1 s are 20 dB below the loudest of the last 3 s. In loud noise there are no pauses."""
    frames = min(FRAMES, len(samples) // FRAME_SAMPLES)
    if not frames:
        return False
    recent = samples[-frames * FRAME_SAMPLES :].reshape(frames, FRAME_SAMPLES)
    power = np.mean(np.square(recent), axis=1)
    return bool(power[-1] < QUIET**2 * power.max())
