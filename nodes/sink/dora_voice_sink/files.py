"""The files of OUT_DIR: what happened, line by line, and what was synthesised."""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from dora_voice.audio import RateConverter
from dora_voice.config import SetupError
from dora_voice.messages import SPEAKER_RATE_HZ, Segment
from dora_voice.wav import WavFile

log = logging.getLogger("dora_voice.sink")

JOURNAL = "conversation.jsonl"
MOST_OPEN = 256
LONGEST_NAME = 120


class Last(NamedTuple):
    """The last line of a journal."""

    t_s: float
    segment: Segment


class Journal:
    """conversation.jsonl: one object per event, on disk as soon as it is written."""

    def __init__(self, folder: Path) -> None:
        """Raises SetupError where it can't write. What a run before left there stays until `begin`."""
        self._path = folder / JOURNAL
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise SetupError(f"OUT_DIR={str(folder)!r}: can't write there: {error}") from error

    def begin(self, restarts: int) -> Last | None:
        """A new conversation in place of the one before; after a restart the same one goes on.

        Returns where it goes on.
        """
        self._file.close()
        written = self._path.read_bytes() if restarts else b""
        self._file = self._path.open("a" if restarts else "w", encoding="utf-8", buffering=1)
        if written and not written.endswith(b"\n"):
            self._file.write("\n")
        for line in reversed(written.split(b"\n")):
            # The last lines may be torn: they were being written when the sink was killed.
            with suppress(ValueError, KeyError, TypeError):
                known = json.loads(line)
                return Last(float(known["t_s"]), Segment(str(known["session_id"]), int(known["segment_id"])))
        return None

    def write(self, t_s: float, segment: Segment, event: str, values: dict[str, Any]) -> None:
        line = {"t_s": round(t_s, 4), **segment._asdict(), "event": event, **values}
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._file.close()


class ReplyFiles:
    """reply-<session>-<segment>.wav: 24 kHz int16, readable at any moment, at most MOST_OPEN open at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[Segment, tuple[WavFile, RateConverter]] = {}
        self._refused: set[Segment] = set()
        self._goes_on = False

    def begin(self, restarts: int) -> None:
        """A new conversation: the replies of the one before go. After a restart they go on."""
        self._goes_on = restarts > 0
        for old in self._folder.glob("reply-*.wav") if not restarts else ():
            old.unlink()

    def write(self, segment: Segment, samples: NDArray[np.float32], sample_rate: int) -> None:
        if not samples.size or segment in self._refused:
            return
        if segment not in self._open:
            if len(self._open) == MOST_OPEN:
                log.error("session=%s segment=%d: not written, %d replies are open", *segment, MOST_OPEN)
                self._refused.add(segment)
                return
            file = WavFile(reply_path(self._folder, segment), SPEAKER_RATE_HZ, goes_on=self._goes_on)
            self._open[segment] = file, RateConverter(SPEAKER_RATE_HZ)
        file, converter = self._open[segment]
        file.write(converter.process(samples, sample_rate))

    def finish(self, segment: Segment) -> None:
        """No more samples of this reply."""
        self._refused.discard(segment)
        if segment in self._open:
            file, converter = self._open.pop(segment)
            file.write(converter.flush())
            file.close()

    def end(self, session_id: str) -> None:
        """No more samples of any reply of this session."""
        for segment in [segment for segment in {*self._open, *self._refused} if segment.session_id == session_id]:
            self.finish(segment)

    def close(self) -> None:
        for segment in list(self._open):
            self.finish(segment)


def reply_path(folder: Path, segment: Segment) -> Path:
    return folder / f"reply-{file_name(segment.session_id)}-{segment.segment_id}.wav"


def file_name(session_id: str) -> str:
    """Any session id as part of a file name: percent-encoded; a very long one is cut and told apart by a hash."""
    name = quote(session_id, safe="")
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(session_id.encode()).hexdigest()[:16]}"
