"""Makes a report of a conversation that the sink wrote down: OUT_DIR/report.html, and a picture, OUT_DIR/report.png.

python -m dora_voice_sink.report out
python -m dora_voice_sink.report out --user question.wav
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from dora_voice.messages import Segment
from dora_voice_sink import picture
from dora_voice_sink.files import JOURNAL, reply_path
from dora_voice_sink.page import page
from dora_voice_sink.record import ReportError, read_journal
from dora_voice_sink.scene import Panel
from dora_voice_sink.timeline import Conversation, Exchange, conversations
from dora_voice_sink.waveform import (
    LONGEST_ALIGNED_S,
    PEAKS_HZ,
    Peaks,
    aligned,
    end_of_voice_s,
    placed,
    read_wav,
    unheard,
)

MOST_REMARKS = 20


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dora_voice_sink.report", description="Reports on a conversation.")
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR", help="the folder that the sink wrote")
    parser.add_argument(
        "--user", type=Path, metavar="AUDIO.wav", help="what the source played, from its first sample on"
    )
    given = parser.parse_args(arguments)
    try:
        for line in write(given.out_dir, given.user):
            print(line)
    except ReportError as error:
        print(f"dora_voice_sink.report: {error}", file=sys.stderr)
        return 2
    return 0


def write(folder: Path, user: Path | None = None) -> list[str]:
    """Writes the report into `folder`. Returns what to tell: the files, and what is missing. Raises ReportError."""
    entries, remarks = read_journal(folder)
    recording = read_wav(user) if user else None
    panels = [_panel(folder, one, recording, remarks) for one in conversations(entries)]
    _add_speaker(folder, panels, max((entry.t_s for entry in entries), default=0.0), remarks)
    told = []
    try:
        (folder / "report.html").write_text(page(panels, str(folder), _first(remarks)), encoding="utf-8")
        told.append(f"wrote {folder / 'report.html'}")
        told.append(picture.write(panels, folder / "report.png"))
    except OSError as error:
        raise ReportError(f"OUT_DIR={str(folder)!r}: can't write there: {error}") from error
    return told + [f"note: {remark}" for remark in _first(remarks)]


def _panel(folder: Path, conversation: Conversation, recording: Peaks | None, remarks: list[str]) -> Panel:
    offset_s = conversation.audio_offset_s
    user = recording.at(offset_s) if recording and offset_s is not None else None
    if recording and user is None:
        remarks.append(f"Session {conversation.session_id!r} has no audio_ms: the user's recording can't be placed.")
    heard: list[Peaks] = []
    rest: list[Peaks] = []
    firsts_s = sorted(exchange.pieces[0].begin_s for exchange in conversation.exchanges if exchange.pieces)
    for exchange in conversation.exchanges:
        reply = _reply(folder, conversation.session_id, exchange, remarks) if exchange.pieces else None
        if reply:
            heard += placed(reply, exchange.pieces)
            last_s = exchange.pieces[-1].end_s
            next_s = next((first_s for first_s in firsts_s if first_s > exchange.pieces[0].begin_s), float("inf"))
            rest.append(unheard(reply, exchange.pieces).between(last_s, max(last_s, min(next_s, last_s + 60))))
    panel = Panel(conversation, user, tuple(heard), tuple(rest))
    return replace(panel, waits_s=_waits_s(panel)) if user else panel


def _reply(folder: Path, session_id: str, exchange: Exchange, remarks: list[str]) -> Peaks | None:
    return _sound(reply_path(folder, Segment(session_id, exchange.segment_id)), remarks)


def _sound(path: Path, remarks: list[str]) -> Peaks | None:
    """None, and a remark, where it can't be read."""
    try:
        return read_wav(path)
    except ReportError as error:
        remarks.append(f"{error}.")
        return None


def _waits_s(panel: Panel) -> dict[int, float]:
    """By segment: how long the user had been silent when it was committed. Only the recording tells."""
    waits_s = {}
    for exchange in panel.conversation.exchanges:
        if panel.user and exchange.commit_s is not None:
            ended_s = end_of_voice_s(panel.user, exchange.begin_s, exchange.commit_s)
            if ended_s is not None:
                waits_s[exchange.segment_id] = max(0.0, exchange.commit_s - ended_s)
    return waits_s


def _add_speaker(folder: Path, panels: list[Panel], lasted_s: float, remarks: list[str]) -> None:
    """One speaker plays all sessions, mixed: each panel shows the time in which its own replies were played."""
    expected = [peaks for panel in panels for peaks in _expected(panel)]
    began_s = (folder / JOURNAL).stat().st_mtime - lasted_s
    for path in sorted(folder.glob("speaker*.wav"), key=_number):
        if path.stat().st_mtime < began_s:
            remarks.append(f"{path}: older than this conversation; it is left out.")
            continue
        sound = _sound(path, remarks)
        speaker = aligned(sound, expected) if sound else None
        if sound and not speaker:
            remarks.append(f"{path}: nothing in it sounds like what the journal says was played; it is left out.")
        if speaker:
            for index, panel in enumerate(panels):
                shown = (speaker,) if len(panels) == 1 else _own_times(panel, speaker)
                panels[index] = replace(panel, speaker=(*panel.speaker, *shown))


def _number(path: Path) -> int:
    """speaker.wav is followed by speaker-2.wav."""
    digits = re.search(r"\d+", path.name)
    return int(digits[0]) if digits else 1


def _expected(panel: Panel) -> tuple[Peaks, ...]:
    """What the speaker must have played; where the reply's file is missing, something of that length."""
    if panel.heard:
        return panel.heard
    pieces = [piece for exchange in panel.conversation.exchanges for piece in exchange.pieces]
    if sum(piece.end_s - piece.begin_s for piece in pieces) > LONGEST_ALIGNED_S:
        return ()
    flats = [(np.full(round((piece.end_s - piece.begin_s) * PEAKS_HZ), 0.1, np.float32), piece) for piece in pieces]
    return tuple(Peaks(-flat, flat, piece.begin_s) for flat, piece in flats)


def _own_times(panel: Panel, speaker: Peaks) -> tuple[Peaks, ...]:
    pieces = (piece for exchange in panel.conversation.exchanges for piece in exchange.pieces)
    return tuple(speaker.between(piece.begin_s, piece.end_s) for piece in pieces)


def _first(remarks: list[str]) -> list[str]:
    """So many replies may be missing that the page would be full of it."""
    more = len(remarks) - MOST_REMARKS
    return remarks if more <= 0 else [*remarks[:MOST_REMARKS], f"And {more} more like these."]


if __name__ == "__main__":
    sys.exit(main())
