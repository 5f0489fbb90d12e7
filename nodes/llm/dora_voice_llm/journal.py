"""The committed history of one run, on disk as it comes about: a node that was killed goes on where it was.

One JSON object per line, appended and handed to the operating system at once, so that all but a torn last line
survives the process. The file bears the name of the run: another run never reads it.
"""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from dora_voice.messages import Segment
from dora_voice_session.schema import ChatMessage, SessionSettings
from dora_voice_session.turns import Turn, Turns

log = logging.getLogger("dora_voice.llm")

LARGEST_BYTES = 16 * 2**20
"""Then what is over is left out, and the file is written anew."""
LEFT_BEHIND_S = 24 * 3600
"""Files of other runs that nobody has written to for this time are those of runs that were killed."""


@dataclass(slots=True)
class Past:
    """What is known of one session."""

    settings: SessionSettings | None = None
    turns: Turns = field(default_factory=Turns)
    unheard: dict[int, int] = field(default_factory=dict)
    """Turns whose reply hasn't been heard to its end, and the code point up to where it was by now."""


class Journal:
    """Without a path, nothing is written. `past` is what the file says, by session."""

    def __init__(self, path: Path | None = None, *, is_restart: bool = False) -> None:
        self.past: dict[str, Past] = {}
        self._path = path
        self._file: TextIO | None = None
        if path is not None:
            self._begin(path, is_restart)

    def said(self, segment: Segment, text: str) -> None:
        self._add(segment.session_id, said=segment.segment_id, text=text)

    def replied(self, segment: Segment, delta: str) -> None:
        self._add(segment.session_id, replied=segment.segment_id, text=delta)

    def playing(self, segment: Segment, text_end: int) -> None:
        self._add(segment.session_id, playing=segment.segment_id, text_end=text_end)

    def heard(self, segment: Segment, text_end: int) -> None:
        self._add(segment.session_id, heard=segment.segment_id, text_end=text_end)

    def dropped(self, segment: Segment) -> None:
        self._add(segment.session_id, dropped=segment.segment_id)

    def replaced(self, session_id: str, settings: SessionSettings, turns: Turns, unheard: dict[int, int]) -> None:
        self._add(session_id, **_whole(Past(settings, turns, unheard)))

    def ended(self, session_id: str) -> None:
        self._add(session_id, ended=True)

    def close(self) -> None:
        """The run is over: there is nothing to go on with."""
        self._stop_writing()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _begin(self, path: Path, is_restart: bool) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _clean_up(path)
            if is_restart and path.exists():
                self._read(path)
            self._write_anew()
        except OSError as error:
            self._give_up(error)

    def _add(self, session_id: str, **what: Any) -> None:
        if self._file is None:
            return
        entry = {"session": session_id, **what}
        self._apply(entry)
        try:
            self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
            self._file.flush()
            if self._file.tell() > LARGEST_BYTES:
                self._write_anew()
        except OSError as error:
            self._give_up(error)

    def _apply(self, entry: dict[str, Any]) -> None:
        """What one line says."""
        if "ended" in entry:
            self.past.pop(entry["session"], None)
            return
        past = self.past.setdefault(entry["session"], Past())
        if "turns" in entry:
            settings = SessionSettings.model_validate(entry["settings"]) if entry["settings"] else None
            unheard = {int(turn_id): text_end for turn_id, text_end in entry["unheard"].items()}
            self.past[entry["session"]] = Past(settings, Turns(map(_turn, entry["turns"])), unheard)
        elif "said" in entry:
            past.turns.revise([ChatMessage(role="user", content=entry["text"])], turn_id=entry["said"])
        elif "replied" in entry and (turn := past.turns.find(entry["replied"])):
            turn.reply = (turn.reply or "") + entry["text"]
            past.unheard.setdefault(turn.turn_id, 0)
        elif "playing" in entry:
            past.unheard[entry["playing"]] = entry["text_end"]
        elif "heard" in entry:
            past.turns.cut(entry["heard"], entry["text_end"])
            past.unheard.pop(entry["heard"], None)
        elif "dropped" in entry:
            past.turns.drop(entry["dropped"])
            past.unheard.pop(entry["dropped"], None)

    def _read(self, path: Path) -> None:
        # Not splitlines: what people say may contain other line separators.
        for line in filter(None, path.read_text(encoding="utf-8", errors="replace").split("\n")):
            try:
                self._apply(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                log.warning("%s: a line can't be read (%s), and is left out", path, error)

    def _write_anew(self) -> None:
        """Writes what is known to a new file, which then takes the old one's place."""
        assert self._path is not None
        self._stop_writing()
        new = self._path.with_suffix(".new")
        # It holds what people said: for nobody else's eyes.
        self._file = os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8")
        for session_id, past in self.past.items():
            self._file.write(json.dumps({"session": session_id, **_whole(past)}, ensure_ascii=False) + "\n")
        self._file.flush()
        new.replace(self._path)

    def _give_up(self, error: OSError) -> None:
        log.error("%s: %s: from here on a crash forgets the conversation", self._path, error)
        self._stop_writing()

    def _stop_writing(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None


def _whole(past: Past) -> dict[str, Any]:
    return {
        "settings": past.settings.model_dump(exclude_none=True) if past.settings else None,
        "turns": [
            {
                "turn_id": turn.turn_id,
                "messages": [message.model_dump() for message in turn.messages],
                "reply": turn.reply,
                "is_open": turn.is_open,
            }
            for turn in past.turns
        ],
        "unheard": {str(turn_id): text_end for turn_id, text_end in past.unheard.items()},
    }


def _turn(document: dict[str, Any]) -> Turn:
    messages = [ChatMessage.model_validate(message) for message in document["messages"]]
    return Turn(document["turn_id"], messages, document["reply"], document["is_open"])


def _clean_up(path: Path) -> None:
    for other in path.parent.glob(f"*{path.suffix}"):
        if other != path and time.time() - other.stat().st_mtime > LEFT_BEHIND_S:
            other.unlink(missing_ok=True)
