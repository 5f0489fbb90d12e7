"""How soon it answers and how soon it falls silent, with the real models in the real dataflow: `make bench`."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.conversing import RECORDINGS, SPLIT, Run, converse, spoken
from bench.interruptions import interrupt
from bench.measuring import Report, machine
from bench.processes import Usage

STORY_GAPS_S = (2.0, 5.0)
"""How long after the story was asked for it is interrupted, at least and at most."""
PARTS = ("answers", "interruptions", "half-sentences")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("out/bench-conversation.json"), help="JSON file for the results"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--interruptions", type=int, default=20)
    parser.add_argument("--only", choices=PARTS, action="append", help="this part, and others named so; default: all")
    options = parser.parse_args()
    report = Report(machine())
    bench = {
        "answers": partial(bench_answers, report, options.rounds),
        "interruptions": partial(bench_interruptions, report, options.interruptions),
        "half-sentences": partial(bench_half_sentences, report, options.rounds),
    }
    for part in options.only or PARTS:
        bench[part]()
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
    interruptions = [interrupt(gap_s) for gap_s in np.linspace(*STORY_GAPS_S, count).tolist()]
    for interruption in interruptions:
        judge_losses(report, interruption.run, "interruptions")
    not_answered = sum(not one.is_answered for one in interruptions)
    report.judge("interruptions not answered", not_answered, "", at_most=0)
    after_flush = sum(one.run.samples_after_flush() for one in interruptions)
    report.judge("samples of an old reply after its flush", after_flush, "", at_most=0)
    hits = [one for one in interruptions if one.silent_ms is not None]
    report.judge("of them, while a reply was playing", len(hits), "", at_least=0.9 * count)
    if hits:
        silent_ms = [one.silent_ms for one in hits]
        report.judge("onset to last old sample, median", statistics.median(silent_ms), "ms", at_most=150)
        report.judge(
            "onset to last old sample, 95th percentile", float(np.percentile(silent_ms, 95)), "ms", at_most=350
        )
        report.judge("the llm gave no history", sum(not one.history for one in hits), "", at_most=0)
        words_off = max(one.words_off for one in hits)
        report.judge("between the llm's history and what was heard, most", words_off, "words", at_most=1)


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


if __name__ == "__main__":
    sys.exit(main())
