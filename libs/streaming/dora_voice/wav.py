"""WAV files that are readable from the first sample on, also when their writer is killed."""

from __future__ import annotations

import wave
from pathlib import Path

from dora_voice.audio import Samples, to_int16


class WavFile:
    """int16 mono. Raises OSError where it can't be written."""

    def __init__(self, path: Path, rate_hz: int, *, goes_on: bool = False) -> None:
        """goes_on: behind what another writer left there, if there is anything."""
        before = _frames(path) if goes_on else b""
        self.samples = len(before) // 2
        self._file = wave.open(str(path), "wb")  # noqa: SIM115 - open until close()
        self._file.setnchannels(1)
        self._file.setsampwidth(2)
        self._file.setframerate(rate_hz)
        # The header now: then every write changes it, which also empties the buffer.
        self._file.writeframes(before)

    def write(self, samples: Samples) -> None:
        # writeframes, not writeframesraw: it keeps the length in the header right.
        self._file.writeframes(to_int16(samples).tobytes())
        self.samples += len(samples)

    def close(self) -> None:
        self._file.close()


def _frames(path: Path) -> bytes:
    try:
        with wave.open(str(path), "rb") as file:
            return file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error):
        return b""
