"""How soon the page falls silent when one speaks into it, in a real browser, with the real models: `make bench`."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.conversing import RECORDINGS, spoken
from bench.measuring import Report, machine
from gateway.browser import Interruption, interrupted
from gateway.serving import serving

STORY_GAPS_S = (3.0, 6.0)
"""How long after the story was asked for it is interrupted, at least and at most."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/bench-page.json"), help="JSON file for the results")
    parser.add_argument("--interruptions", type=int, default=10)
    options = parser.parse_args()
    report = Report(machine())
    report.title(f"{options.interruptions} interruptions of a story, at varied moments: in the page's output")
    with tempfile.TemporaryDirectory() as name, serving(Path(name)) as served, sync_playwright() as playwright:
        url = f"http://localhost:{served.port}/"
        interruptions: list[Interruption] = []
        for gap_s in np.linspace(*STORY_GAPS_S, options.interruptions).tolist():
            recording = Path(name) / "said.wav"
            interruptions.append(interrupted(playwright, url, recording, _record(recording, gap_s)))
    silent_ms = [one.silent_ms for one in interruptions if one.silent_ms > 0]
    report.judge("of them, while a reply was playing", len(silent_ms), "", at_least=0.8 * len(interruptions))
    if silent_ms:
        report.judge("onset to last old sample, median", statistics.median(silent_ms), "ms", at_most=300)
        report.judge("onset to last old sample, most", max(silent_ms), "ms", at_most=300)
    report.write(options.out)
    return int(any(row.is_kept is False for row in report.rows))


def _record(path: Path, gap_s: float) -> list[dict[str, Any]]:
    """Writes `barge-in`, interrupted so many seconds after the story was asked for. Returns what is spoken when."""
    samples, rate_hz = soundfile.read(RECORDINGS / "barge-in.wav", dtype="float32")
    ask, stop = spoken("barge-in")
    cut_s = stop["start_s"] - ask["end_s"] - gap_s
    kept = samples[: round(ask["end_s"] * rate_hz)], samples[round((ask["end_s"] + cut_s) * rate_hz) :]
    soundfile.write(path, np.concatenate(kept), rate_hz)
    return [ask, stop | {"start_s": stop["start_s"] - cut_s, "end_s": stop["end_s"] - cut_s}]


if __name__ == "__main__":
    sys.exit(main())
