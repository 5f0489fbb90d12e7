"""WAV files that are readable at any moment, also when their writer is killed."""

from __future__ import annotations

import wave
from pathlib import Path

from dora_voice.audio import Samples, to_int16


class WavFile:
    """int16 mono. Raises OSError where it can't be written."""

    def __init__(self, path: Path, rate_hz: int) -> None:
        self.samples = 0
        self._file = wave.open(str(path), "wb")  # noqa: SIM115 - open until close()
        self._file.setnchannels(1)
        self._file.setsampwidth(2)
        self._file.setframerate(rate_hz)

    def write(self, samples: Samples) -> None:
        # writeframes, not writeframesraw: it keeps the length in the header right.
        self._file.writeframes(to_int16(samples).tobytes())
        self.samples += len(samples)

    def close(self) -> None:
        self._file.close()
