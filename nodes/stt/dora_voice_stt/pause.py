"""Tells by its loudness whether the speaker is pausing, and whether a pause goes on."""

from __future__ import annotations

import numpy as np

from dora_voice.audio import Samples
from dora_voice.messages import SOURCE_RATE_HZ

FRAME_SAMPLES = SOURCE_RATE_HZ // 10
FRAMES = 30
QUIET = 0.1
SHORT_FRAME_SAMPLES = FRAME_SAMPLES // 4
"""As short as what may end a word, as the k in `work`."""
SILENT = 0.02
AS_QUIET = 2.0
"""Power, relative to a pause's beginning, that still is a pause."""


def is_pausing(samples: Samples) -> bool:
    """Whether the last 0.1 s are 20 dB below the loudest of the last 3 s. In loud noise there are no pauses."""
    power = _powers(samples[-FRAMES * FRAME_SAMPLES :], FRAME_SAMPLES)
    return bool(len(power) and power[-1] < QUIET**2 * power.max())


def goes_on_pausing(samples: Samples, since: int) -> bool:
    """Whether nothing since a pause began at this sample is louder than it began, or heard at all."""
    before = _powers(samples[:since][-FRAMES * FRAME_SAMPLES :], FRAME_SAMPLES)
    if not len(before):
        return False
    after = _powers(samples[since:], SHORT_FRAME_SAMPLES)
    return bool(np.all(after <= max(SILENT**2 * before.max(), AS_QUIET * before[-1])))


def _powers(samples: Samples, frame_samples: int) -> Samples:
    """Of frames that end where the samples end, shape (frames,)."""
    frames = len(samples) // frame_samples
    return np.mean(np.square(samples[len(samples) - frames * frame_samples :].reshape(frames, frame_samples)), axis=1)
