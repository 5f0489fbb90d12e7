"""How soon it answers and how soon it falls silent, with the real models in the real dataflow: `make bench`.

A recording is spoken in real time: its sample n at t0 + n / 16,000 on the sink's clock, where t0 is the earliest that
fits to what the vad had heard when it spoke up. When a reply's sample was played follows from the speaker's reports.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.measuring import Report, machine
from bench.processes import Usage, watched_dora_run
from dora_run import ROOT

RECORDINGS = ROOT / "tests/recordings"
REPLY_HZ = 24_000
SPLIT = ("commit", "transcript", "first token", "first audio", "first sample played")
STORY_GAPS_S = (1.8, 3.6)
"""How long after the story was asked for it is interrupted, at least and at most."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("out/bench-conversation.json"), help="JSON file for the results"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--interruptions", type=int, default=20)
    options = parser.parse_args()
    report = Report(machine())
    bench_answers(report, options.rounds)
    bench_interruptions(report, options.interruptions)
    bench_half_sentences(report, options.rounds)
    report.write(options.out)
    return int(any(row.is_kept is False for row in report.rows))


# Answers


def bench_answers(report: Report, rounds: int) -> None:
    truth = spoken("three-questions")
    for speculate in ("true", "false"):
        report.title(f"three questions, SPECULATE={speculate}: ms after the end of speech")
        taken: dict[str, list[float]] = defaultdict(list)
        usages: list[Usage] = []
        for _ in range(rounds):
            run = converse(RECORDINGS / "three-questions.wav", SPECULATE=speculate)
            usages.append(run.usage)
            for part in truth:
                for name, ms in run.answer_ms(part["end_s"]).items():
                    taken[name].append(ms)
            judge_losses(report, run, f"SPECULATE={speculate}")
            taken["turns"].append(len([e for e in run.events if e["event"] == "commit"]))
        for name in SPLIT:
            report.add(f"{name}, median of {len(taken[name])}", statistics.median(taken[name]), "ms")
        report.add("first sample played, least", min(taken[SPLIT[-1]]), "ms")
        report.add("first sample played, most", max(taken[SPLIT[-1]]), "ms")
        if speculate == "true":
            beyond_ms = [last - wait for last, wait in zip(taken[SPLIT[-1]], taken["commit"], strict=True)]
            report.judge("beyond the end-of-turn wait, median", statistics.median(beyond_ms), "ms", at_most=100)
            report.judge("answer, median", statistics.median(taken[SPLIT[-1]]), "ms", at_most=500)
        cut_off = sum(abs(turns - len(truth)) for turns in taken["turns"])
        report.judge("turns cut off or joined", cut_off, "", at_most=0)
        for name in sorted(usages[0].cpu_s):
            per_minute = [60 * usage.cpu_s[name] / usage.lasted_s for usage in usages if name in usage.cpu_s]
            report.add(f"{name}: CPU seconds a minute", statistics.median(per_minute), "s")
            report.add(f"{name}: memory", max(usage.memory_mb[name] for usage in usages), "MB")


# Interruptions


def bench_interruptions(report: Report, count: int) -> None:
    report.title(f"{count} interruptions of a story, at varied moments")
    with tempfile.TemporaryDirectory() as folder:
        recording, onsets_s, ends_s = interrupted_stories(Path(folder) / "interruptions.wav", count)
        run = converse(recording, timeout_s=60 + 20 * count)
    silent_ms = [ms for onset_s in onsets_s if (ms := run.silent_ms(onset_s)) is not None]
    report.judge("replies that were playing", len(silent_ms), "", at_least=0.8 * count)
    report.judge("onset to last old sample, median", statistics.median(silent_ms), "ms", at_most=150)
    report.judge("onset to last old sample, 95th percentile", float(np.percentile(silent_ms, 95)), "ms", at_most=350)
    answers = [run.answer_ms(end_s) for end_s in ends_s]
    report.judge("interruptions not answered", sum("first sample played" not in a for a in answers), "", at_most=0)
    report.judge("samples of an old reply after its flush", run.samples_after_flush(), "", at_most=0)
    judge_losses(report, run, "interruptions")


def interrupted_stories(path: Path, count: int) -> tuple[Path, list[float], list[float]]:
    """A story is asked for and interrupted, again and again. The onsets and ends of the interruptions, in seconds."""
    samples, rate_hz = soundfile.read(RECORDINGS / "barge-in.wav", dtype="float32")
    ask, interrupt = (samples[round(s["start_s"] * rate_hz) : round(s["end_s"] * rate_hz)] for s in spoken("barge-in"))
    parts, position, onsets_s, ends_s = [], 0, [], []

    def say(part: np.ndarray) -> None:
        nonlocal position
        parts.append(part)
        position += len(part)

    for gap_s in np.linspace(*STORY_GAPS_S, count):
        say(np.zeros(rate_hz, np.float32))
        say(ask)
        say(np.zeros(round(gap_s * rate_hz), np.float32))
        onsets_s.append(position / rate_hz)
        say(interrupt)
        ends_s.append(position / rate_hz)
        say(np.zeros(5 * rate_hz, np.float32))
    soundfile.write(path, np.concatenate(parts), rate_hz)
    return path, onsets_s, ends_s


# What must not interrupt, and must not be cut off


def bench_half_sentences(report: Report, rounds: int) -> None:
    report.title("a hum, and sentences with a pause in them")
    for name, turns in (("backchannel", 1), ("resumed", 1), ("hesitation", 1)):
        runs = [converse(RECORDINGS / f"{name}.wav") for _ in range(rounds)]
        wrong = sum(run.turns_that_stayed() != turns for run in runs)
        report.judge(f"{name}: of {rounds} runs, with more or less than {turns} turn", wrong, "", at_most=0)
        for run in runs:
            judge_losses(report, run, name)


def judge_losses(report: Report, run: Run, name: str) -> None:
    lost = [event for event in run.events if event["event"] in ("gap", "error")]
    if lost:
        report.judge(f"{name}: gaps and errors", len(lost), "", at_most=0)


# Runs


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
        committed = [e for e in self._of("commit") if e["audio_ms"] > 1000 * end_s and not self._is_taken_back(e)]
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

    def silent_ms(self, onset_s: float) -> float | None:
        """From an onset to the last sample of the reply that was being played; None if none was."""
        onset = self.t0_s + onset_s
        before = [e for e in self._of("played") if e["t_s"] < onset]
        if not before or before[-1]["fin"]:
            return None
        report = before[-1]
        samples = max(e["samples"] for e in self._of("played", report["segment_id"]))
        return 1000 * (report["t_s"] + (samples - report["samples"]) / REPLY_HZ - onset)

    def samples_after_flush(self) -> int:
        after = 0
        for flush in self._of("flush"):
            for segment_id in {e["segment_id"] for e in self._of("played") if e["segment_id"] < flush["segment_id"]}:
                reports = self._of("played", segment_id)
                then = max((e["samples"] for e in reports if e["fin"] or e["t_s"] <= flush["t_s"]), default=0)
                after += max(0, max(e["samples"] for e in reports) - then)
        return after

    def turns_that_stayed(self) -> int:
        return sum(not self._is_taken_back(event) for event in self._of("commit"))

    def _is_taken_back(self, event: dict[str, Any]) -> bool:
        return bool(self._of("drop", event["segment_id"]))

    def _first_sample_s(self, segment_id: int) -> float | None:
        reports = [e for e in self._of("played", segment_id) if e["samples"]]
        return reports[0]["t_s"] - reports[0]["samples"] / REPLY_HZ if reports else None

    def _first_s(self, name: str, segment_id: int) -> float | None:
        return next((event["t_s"] for event in self._of(name, segment_id)), None)

    def _last_s(self, name: str, segment_id: int) -> float | None:
        return next((event["t_s"] for event in reversed(self._of(name, segment_id))), None)

    def _of(self, name: str, segment_id: int | None = None) -> list[dict[str, Any]]:
        return [e for e in self.events if e["event"] == name and segment_id in (None, e["segment_id"])]


def converse(recording: Path, timeout_s: float = 180, **env: str) -> Run:
    out_dir = Path(tempfile.mkdtemp())
    try:
        usage = watched_dora_run(ROOT / "dataflow.yml", timeout_s, AUDIO_IN=str(recording), OUT_DIR=str(out_dir), **env)
        return Run(_lines(out_dir / "conversation.jsonl"), usage)
    finally:
        shutil.rmtree(out_dir)


def spoken(recording: str) -> list[dict[str, Any]]:
    return json.loads((RECORDINGS / f"{recording}.json").read_text())["speech"]


def _lines(path: Path) -> list[dict[str, Any]]:
    events: Iterable[dict[str, Any]] = map(json.loads, path.read_text().splitlines())
    return list(events)


if __name__ == "__main__":
    sys.exit(main())
