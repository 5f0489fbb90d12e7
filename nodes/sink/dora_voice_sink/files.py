"""The files of OUT_DIR: what happened, line by line, and what was synthesised."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import OrderedDict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from dora_voice.audio import Resampler
from dora_voice.config import SetupError
from dora_voice.messages import SPEAKER_RATE_HZ, Segment
from dora_voice.wav import WavFile

log = logging.getLogger("dora_voice.sink")

MOST_OPEN = 64
LONGEST_NAME = 120


class Journal:
    """conversation.jsonl: one object per event, on disk as soon as it is written."""

    def __init__(self, folder: Path) -> None:
        """Raises SetupError where it can't write. What a run before left there stays until `open`."""
        self._path = folder / "conversation.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise SetupError(f"OUT_DIR={str(folder)!r}: can't write there: {error}") from error

    def open(self) -> None:
        """Begins a new conversation, in place of the one before."""
        self._file.close()
        self._file = self._path.open("w", encoding="utf-8", buffering=1)

    def write(self, t_s: float, segment: Segment, event: str, values: dict[str, Any]) -> None:
        line = {"t_s": round(t_s, 4), **segment._asdict(), "event": event, **values}
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._file.close()


class ReplyFiles:
    """reply-<session>-<segment>.wav: 24 kHz int16, readable at any moment, at most MOST_OPEN open at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: OrderedDict[Segment, tuple[WavFile, Resampler]] = OrderedDict()

    def open(self) -> None:
        """Begins a new conversation: the replies of the one before go."""
        for old in self._folder.glob("reply-*.wav"):
            old.unlink()

    def write(self, segment: Segment, samples: NDArray[np.float32], sample_rate: int) -> None:
        if not samples.size:
            return
        if segment not in self._open:
            path = self._folder / f"reply-{file_name(segment.session_id)}-{segment.segment_id}.wav"
            self._open[segment] = (WavFile(path, SPEAKER_RATE_HZ), Resampler(sample_rate, SPEAKER_RATE_HZ))
            if len(self._open) > MOST_OPEN:
                self.finish(next(iter(self._open)))
        file, resampler = self._open[segment]
        file.write(resampler.process(samples))

    def finish(self, segment: Segment) -> None:
        """No more samples of this reply."""
        if segment in self._open:
            file, resampler = self._open.pop(segment)
            file.write(resampler.flush())
            file.close()

    def close(self) -> None:
        for segment in list(self._open):
            self.finish(segment)


def file_name(session_id: str) -> str:
    """Any session id as part of a file name: percent-encoded; a very long one is cut and told apart by a hash."""
    name = quote(session_id, safe="")
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(session_id.encode()).hexdigest()[:16]}"
