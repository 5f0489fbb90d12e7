"""A voice without a model, for tests of whole graphs: a tone, the longer the more there is to say."""

from __future__ import annotations

import math

import numpy as np

from dora_voice.messages import SPEAKER_RATE_HZ
from dora_voice_tts.voice import Speech

MS_PER_CHARACTER = 60
TONE_HZ = 200
LEVEL = 0.3


class FakeVoice:
    name = "fake"
    rate_hz = SPEAKER_RATE_HZ

    def speak(self, text: str, begun: int | None = None) -> Speech:
        return self._say(len(text) - (begun or 0))

    def begin(self, words: str, next_word: str, begun: int | None) -> tuple[Speech, int]:
        return self._say(len(words) - (begun or 0)), len(words)

    def _say(self, characters: int) -> Speech:
        """One piece per character. They are whole periods, so that one joins the next without a click."""
        n = np.arange(MS_PER_CHARACTER * self.rate_hz // 1000)
        tone = (LEVEL * np.sin(2 * math.pi * TONE_HZ / self.rate_hz * n)).astype(np.float32)
        return Speech(characters * len(tone), (tone for _ in range(characters)))
