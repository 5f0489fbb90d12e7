"""Speakers without a device."""

from __future__ import annotations

from pathlib import Path

from dora_voice.audio import Samples
from dora_voice.config import SetupError
from dora_voice.messages import SPEAKER_RATE_HZ
from dora_voice.wav import WavFile

LONGEST_SAMPLES = 4 * 3600 * SPEAKER_RATE_HZ
"""Of one file. A WAV file ends at 4 GiB."""


class NullSpeaker:
    """Plays into nothing."""

    def play(self, sound: Samples) -> None:
        pass

    def close(self) -> None:
        pass


class FileSpeaker:
    """Writes everything that a listener would have heard, silence too, into speaker.wav.

    After four hours it goes on in speaker-2.wav. Raises SetupError where it can't write.
    """

    def __init__(self, folder: Path, longest_samples: int = LONGEST_SAMPLES) -> None:
        self._folder = folder
        self._longest_samples = longest_samples
        self._files: list[WavFile] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # What a run before left there stays until something is played.
            self._path(1).open("a").close()
        except OSError as error:
            raise SetupError(f"OUT_DIR={str(folder)!r}: can't write speaker.wav there: {error}") from error

    def play(self, sound: Samples) -> None:
        if not self._files or self._files[-1].samples + len(sound) > self._longest_samples:
            self.close()
            self._files.append(WavFile(self._path(len(self._files) + 1), SPEAKER_RATE_HZ))
        self._files[-1].write(sound)

    def close(self) -> None:
        if self._files:
            self._files[-1].close()

    def _path(self, number: int) -> Path:
        return self._folder / ("speaker.wav" if number == 1 else f"speaker-{number}.wav")
