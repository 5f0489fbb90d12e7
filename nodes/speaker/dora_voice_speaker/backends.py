"""Speakers without a device."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dora_voice.audio import to_int16
from dora_voice.config import SetupError
from dora_voice.messages import SPEAKER_RATE_HZ


class NullSpeaker:
    """Plays into nothing."""

    def play(self, sound: NDArray[np.float32]) -> None:
        pass

    def close(self) -> None:
        pass


class FileSpeaker:
    """Writes everything that a listener would have heard, silence too, into a 24 kHz WAV file."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = wave.open(str(path), "wb")  # noqa: SIM115 - open as long as the node lives
        except OSError as error:
            raise SetupError(f"OUT_DIR={str(path.parent)!r}: can't write {path.name} there: {error}") from error
        self._file.setnchannels(1)
        self._file.setsampwidth(2)
        self._file.setframerate(SPEAKER_RATE_HZ)

    def play(self, sound: NDArray[np.float32]) -> None:
        # writeframes, not writeframesraw: it keeps the header right, so that the file is readable at any moment.
        self._file.writeframes(to_int16(sound).tobytes())

    def close(self) -> None:
        self._file.close()
