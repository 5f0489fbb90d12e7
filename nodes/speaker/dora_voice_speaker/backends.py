"""Speakers without a device."""

from __future__ import annotations

import logging
from pathlib import Path

from dora_voice.audio import Samples
from dora_voice.config import SetupError
from dora_voice.messages import SPEAKER_RATE_HZ
from dora_voice.wav import WavFile

log = logging.getLogger("dora_voice.speaker")

LONGEST_SAMPLES = 4 * 3600 * SPEAKER_RATE_HZ
"""Of one file. A WAV file ends at 4 GiB."""


class NullSpeaker:
    """Plays into nothing."""

    def begin(self, restarts: int) -> None:
        pass

    def play(self, sound: Samples) -> None:
        pass

    def close(self) -> None:
        pass


class FileSpeaker:
    """Writes everything that a listener would have heard, silence too, into speaker.wav.

    After four hours, and after a restart, it goes on in speaker-2.wav and so on. Raises SetupError where it
    can't write; a disk that is full later costs one log line and the rest of the sound.
    """

    def __init__(self, folder: Path, longest_samples: int = LONGEST_SAMPLES) -> None:
        self._folder = folder
        self._longest_samples = longest_samples
        self._number = 0
        self._file: WavFile | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # What a run before left there stays until everybody is connected.
            self._path(1).open("a").close()
        except OSError as error:
            raise SetupError(f"OUT_DIR={str(folder)!r}: can't write speaker.wav there: {error}") from error

    def begin(self, restarts: int) -> None:
        while restarts and self._path(self._number + 1).exists():
            self._number += 1
        for old in self._folder.glob("speaker-*.wav") if not restarts else ():
            old.unlink()
        self._next_file()

    def play(self, sound: Samples) -> None:
        if self._file is None:
            return
        try:
            if self._file.samples + len(sound) > self._longest_samples:
                self._next_file()
            self._file.write(sound)
        except OSError as error:
            log.error("%s: what is played is not written any more: %s", self._path(self._number), error)
            self._file = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _next_file(self) -> None:
        self.close()
        self._number += 1
        self._file = WavFile(self._path(self._number), SPEAKER_RATE_HZ)

    def _path(self, number: int) -> Path:
        return self._folder / ("speaker.wav" if number == 1 else f"speaker-{number}.wav")
