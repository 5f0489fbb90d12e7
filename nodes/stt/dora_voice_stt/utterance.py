"""An utterance, as it comes in: its sound at one sample rate and of limited length, and what it may say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dora_voice.audio import EMPTY, Resampler, Samples
from dora_voice.messages import SOURCE_RATE_HZ
from dora_voice_stt.hypotheses import Hypotheses
from dora_voice_stt.pause import RECENT_SAMPLES, goes_on_pausing, is_pausing, pause_power
from dora_voice_stt.recognizer import Transcript


@dataclass(frozen=True, slots=True)
class Draft:
    """The transcript of an utterance, up to a pause in it."""

    samples: int
    pause_power: float
    """What is louder afterwards was said afterwards."""
    transcript: Transcript | None
    """None if the model failed."""


class Utterance:
    """Collects speech of any sample rate; what goes beyond `longest_s` is dropped and counted."""

    def __init__(self, longest_s: float, before: Samples = EMPTY, hypothesis_ms: int = 0) -> None:
        """`before`: sound of 16 kHz that this utterance continues."""
        self.is_complete = False
        self.is_dropped = False
        self.is_speculative = False
        self.kept_samples = 0
        self.dropped_samples = 0
        self._most_samples = round(longest_s * SOURCE_RATE_HZ)
        self._rate_hz: int | None = None
        self._resampler = Resampler(SOURCE_RATE_HZ, SOURCE_RATE_HZ)
        self._pieces: list[Samples] = []
        self._keep(before)
        self.hypotheses = Hypotheses(hypothesis_ms, self.kept_samples)
        self.draft: Draft | None = None

    @property
    def is_open(self) -> bool:
        """Whether it goes on."""
        return not (self.is_complete or self.is_dropped)

    def add(self, samples: Samples, rate_hz: int) -> None:
        """Raises ValueError for a sample rate that changed within the utterance."""
        if self._rate_hz is None:
            self._rate_hz, self._resampler = rate_hz, Resampler(rate_hz, SOURCE_RATE_HZ)
        if rate_hz != self._rate_hz:
            raise ValueError(f"sample_rate={rate_hz}: expected {self._rate_hz}, as at the start of this segment")
        self._keep(self._resampler.process(samples))

    def so_far(self) -> Samples:
        """What has come of it, 16 kHz, shape (samples,)."""
        return np.concatenate([EMPTY, *self._pieces])

    @property
    def is_pausing(self) -> bool:
        return is_pausing(self._last(RECENT_SAMPLES))

    @property
    def is_drafted(self) -> bool:
        """Whether nothing was said since the draft."""
        if (draft := self.draft) is None:
            return False
        return goes_on_pausing(self._last(self.kept_samples - draft.samples), draft.pause_power)

    def draft_of(self, transcript: Transcript | None, samples: int) -> Draft:
        """samples: what was transcribed, which ended in a pause."""
        since = self.kept_samples - samples
        recent = self._last(RECENT_SAMPLES + since)
        return Draft(samples, pause_power(recent[: len(recent) - since]), transcript)

    def complete(self) -> Samples:
        """The whole of it. Nothing may be added afterwards."""
        if not self.is_complete:
            self._keep(self._resampler.flush())
            self.is_complete = True
        return self.so_far()

    def _last(self, samples: int) -> Samples:
        """Without looking at all that came before."""
        pieces: list[Samples] = []
        missing = samples
        for piece in reversed(self._pieces):
            if missing <= 0:
                break
            pieces.append(piece[-missing:])
            missing -= len(piece)
        return np.concatenate([EMPTY, *reversed(pieces)])

    def _keep(self, samples: Samples) -> None:
        kept = samples[: self._most_samples - self.kept_samples]
        if len(kept):
            self._pieces.append(kept)
        self.kept_samples += len(kept)
        self.dropped_samples += len(samples) - len(kept)
