"""A recording spoken to the real dataflow in real time, and when things happened in that conversation.

The recording's sample n is spoken at t0 + n / 16,000 on the sink's clock, where t0 is the earliest that
fits to what the vad had heard when it spoke up. When a reply's sample was played follows from the speaker's reports.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.processes import Usage, watched_dora_run
from dora_run import ROOT

RECORDINGS = ROOT / "tests/recordings"
REPLY_HZ = 24_000
SPLIT = ("commit", "transcript", "first token", "first audio", "first sample played")


@dataclass(frozen=True, slots=True)
class Run:
    events: Sequence[dict[str, Any]]
    usage: Usage

    @property
    def t0_s(self) -> float:
        """When the recording's first sample was spoken, on the sink's clock."""
        heard = [e for e in self.events if "audio_ms" in e and e["event"] in ("pause", "flush", "commit", "resume")]
        return min(event["t_s"] - event["audio_ms"] / 1000 for event in heard)

    def answer_ms(self, end_s: float) -> dict[str, float]:
        """Of the first turn that was committed after this moment of the recording: ms from it on. SPLIT names them."""
        committed = [e for e in self.of("commit") if e["audio_ms"] > 1000 * end_s and not self._is_taken_back(e)]
        if not committed:
            return {}
        segment_id = committed[0]["segment_id"]
        first = {
            "commit": committed[0]["t_s"],
            "transcript": self._last_s("hypothesis", segment_id),
            "first token": self._first_s("reply", segment_id),
            "first audio": self._first_s("audio", segment_id),
            "first sample played": self._first_sample_s(segment_id),
        }
        return {name: 1000 * (t_s - self.t0_s - end_s) for name, t_s in first.items() if t_s is not None}

    def last_report(self, onset_s: float) -> dict[str, Any] | None:
        """The speaker's last report before an onset about the reply that was being played; None if none was."""
        before = [e for e in self.of("played") if e["t_s"] < self.t0_s + onset_s]
        return before[-1] if before and not before[-1]["fin"] else None

    def silent_ms(self, onset_s: float) -> float | None:
        """From an onset to the last sample of the reply that was being played; None if none was."""
        if (report := self.last_report(onset_s)) is None:
            return None
        samples = max(e["samples"] for e in self.of("played", report["segment_id"]))
        return 1000 * (report["t_s"] + (samples - report["samples"]) / REPLY_HZ - self.t0_s - onset_s)

    def samples_after_flush(self) -> int:
        """Beyond the last report before the flush, which is exact: a reply is held before it is cut."""
        after = 0
        for flush in self.of("flush"):
            for segment_id in {e["segment_id"] for e in self.of("played") if e["segment_id"] < flush["segment_id"]}:
                reports = self.of("played", segment_id)
                then = max((e["samples"] for e in reports if e["t_s"] <= flush["t_s"]), default=0)
                after += max(e["samples"] for e in reports) - then
        return after

    def turns_that_stayed(self) -> int:
        return sum(not self._is_taken_back(event) for event in self.of("commit"))

    def of(self, name: str, segment_id: int | None = None) -> list[dict[str, Any]]:
        """The events of this name, in order."""
        return [e for e in self.events if e["event"] == name and segment_id in (None, e["segment_id"])]

    def _is_taken_back(self, event: dict[str, Any]) -> bool:
        return bool(self.of("drop", event["segment_id"]))

    def _first_sample_s(self, segment_id: int) -> float | None:
        reports = [e for e in self.of("played", segment_id) if e["samples"]]
        return reports[0]["t_s"] - reports[0]["samples"] / REPLY_HZ if reports else None

    def _first_s(self, name: str, segment_id: int) -> float | None:
        return next((event["t_s"] for event in self.of(name, segment_id)), None)

    def _last_s(self, name: str, segment_id: int) -> float | None:
        return next((event["t_s"] for event in reversed(self.of(name, segment_id))), None)


def converse(recording: Path, dataflow: Path = ROOT / "dataflow.yml", timeout_s: float = 180, **env: str) -> Run:
    out_dir = Path(tempfile.mkdtemp())
    try:
        usage = watched_dora_run(dataflow, timeout_s, AUDIO_IN=str(recording), OUT_DIR=str(out_dir), **env)
        lines = (out_dir / "conversation.jsonl").read_text().splitlines()
        return Run([json.loads(line) for line in lines], usage)
    finally:
        shutil.rmtree(out_dir)


def spoken(recording: str) -> list[dict[str, Any]]:
    return json.loads((RECORDINGS / f"{recording}.json").read_text())["speech"]
