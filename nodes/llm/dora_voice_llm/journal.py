"""The committed history of one run, on disk as it comes about: a node that was killed goes on where it was.

One JSON object per line, appended and handed to the operating system at once, so that all but a torn last line
survives the process. The file bears the name of the run: another run never reads it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from dora_voice_llm import past
from dora_voice_llm.past import Entry, Past

log = logging.getLogger("dora_voice.llm")

PREFIX = "dora-voice-llm-"
"""Of the names of journals: nothing else in their folder is touched."""
LARGEST_BYTES = 16 * 2**20
"""Then what is over is left out, and the file is written anew; and again when it has doubled."""
LEFT_BEHIND_S = 24 * 3600
"""Journals that nobody has written to for this time are those of runs that were killed."""


class Journal:
    """Without a run's name, nothing is written. `present` tells what is known now, to begin anew with."""

    def __init__(self, folder: Path, run: str, present: Callable[[], Mapping[str, Past]]) -> None:
        self._path = folder / f"{PREFIX}{run}.jsonl"
        self._present = present
        self._file: TextIO | None = None
        self._largest_bytes = LARGEST_BYTES
        self._is_wanted = bool(run)

    def begin(self, *, is_restart: bool) -> dict[str, Past]:
        """What the process before this one has left, by session. Writing begins with `begin_anew`."""
        if not self._is_wanted:
            return {}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._clean_up()
            return _read(self._path) if is_restart and self._path.exists() else {}
        except OSError as error:
            self._give_up(error)
            return {}

    def begin_anew(self) -> None:
        """Writes what is known now to a new file, which then takes the old one's place."""
        if not self._is_wanted:
            return
        try:
            self._write_anew()
        except OSError as error:
            self._give_up(error)

    def add(self, session_id: str, entry: Entry) -> None:
        # Closed: by the interpreter, which may collect the file before the work that would write to it.
        if self._file is None or self._file.closed:
            return
        try:
            self._file.write(_line(session_id, entry))
            self._file.flush()
            if self._file.tell() > self._largest_bytes:
                self._write_anew()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """The run is over: there is nothing to go on with."""
        self._stop_writing()
        if self._is_wanted:
            for path in (self._path, self._path.with_suffix(".new")):
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def _write_anew(self) -> None:
        self._stop_writing()
        new = self._path.with_suffix(".new")
        # It holds what people said: for nobody else's eyes.
        self._file = os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8")
        fcntl.flock(self._file, fcntl.LOCK_SH)
        for session_id, known in self._present().items():
            self._file.write(_line(session_id, known.whole()))
        self._file.flush()
        self._largest_bytes = max(LARGEST_BYTES, 2 * self._file.tell())
        new.replace(self._path)

    def _clean_up(self) -> None:
        for other in self._path.parent.glob(f"{PREFIX}*"):
            if other.suffix in (".jsonl", ".new") and other != self._path:
                with suppress(OSError):
                    _remove_if_left_behind(other)

    def _give_up(self, error: OSError) -> None:
        log.error("%s: %s: from here on a crash forgets the conversation", self._path, error)
        # What is there would be out of date.
        self.close()
        self._is_wanted = False

    def _stop_writing(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None


def _remove_if_left_behind(path: Path) -> None:
    """Raises BlockingIOError, an OSError, if a living run writes to it."""
    if time.time() - path.stat().st_mtime > LEFT_BEHIND_S:
        with path.open() as journal:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)


def _line(session_id: str, entry: Entry) -> str:
    # ASCII, because what people say may have line separators, or halves of surrogate pairs.
    return json.dumps({"session": session_id, **entry}) + "\n"


def _read(path: Path) -> dict[str, Past]:
    known: dict[str, Past] = {}
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        try:
            entry = json.loads(line)
            if past.is_end(entry):
                known.pop(entry["session"], None)
            else:
                known.setdefault(entry["session"], Past()).apply(entry)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.warning("%s: a line can't be read (%s: %s), and is left out", path, type(error).__name__, error)
    return known
