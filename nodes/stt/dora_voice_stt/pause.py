"""Tells by its loudness whether the speaker is pausing, and whether a pause goes on."""

from __future__ import annotations

import numpy as np

from dora_voice.audio import Samples
from dora_voice.messages import SOURCE_RATE_HZ

RECENT_SAMPLES = 3 * SOURCE_RATE_HZ
FRAME_SAMPLES = 1024
SHORT_FRAME_SAMPLES = FRAME_SAMPLES // 4
"""As short as what may end a word, as the k in `work`."""
LOUD = 0.85
"""So much of what was heard is less loud than what counts as loud: the rest may be a knock or a pop."""
INAUDIBLE = 0.04
LOUDEST_PAUSE = 0.15
"""Amplitudes, relative to what is loud."""
AS_QUIET = 2.0
"""Power, relative to the quietest that was heard, that is the same noise of the room."""


def pause_power(recent: Samples) -> float:
    """What is quieter than this is a pause; of the sound so far, the last 3 s count. In loud noise there are none."""
    power = _powers(recent[-RECENT_SAMPLES:], FRAME_SAMPLES)
    if not len(power):
        return 0.0
    loud, quietest = np.quantile(power, LOUD), power.min()
    return float(max(INAUDIBLE**2 * loud, min(AS_QUIET * quietest, LOUDEST_PAUSE**2 * loud)))


def is_pausing(recent: Samples) -> bool:
    """Whether its end is one."""
    power = _powers(recent[-FRAME_SAMPLES:], FRAME_SAMPLES)
    return bool(len(power) and power[-1] < pause_power(recent))


def goes_on_pausing(since: Samples, power: float) -> bool:
    """Whether a pause of this power has not been broken since, however shortly."""
    return bool(np.all(_powers(since, SHORT_FRAME_SAMPLES) <= power))


def _powers(samples: Samples, frame_samples: int) -> Samples:
    """Of frames that end where the samples end, shape (frames,)."""
    frames = len(samples) // frame_samples
    return np.mean(np.square(samples[len(samples) - frames * frame_samples :].reshape(frames, frame_samples)), axis=1)
