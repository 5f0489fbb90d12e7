"""A story is asked for and interrupted, in a conversation of its own; then the llm tells what it remembers of it."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import yaml
from bench.conversing import RECORDINGS, Run, converse, spoken
from dora_run import ROOT

HISTORY_ASKER = ROOT / "tests/bench/nodes/history_asker.py"


@dataclass(frozen=True, slots=True)
class Interruption:
    """One conversation. `onset_s` and `end_s`: when the interruption was spoken, in seconds of the recording."""

    run: Run
    onset_s: float
    end_s: float
    history: list[dict[str, Any]]
    """The llm's messages: `role` and `content`. Empty if it gave none."""

    @property
    def silent_ms(self) -> float | None:
        return self.run.silent_ms(self.onset_s)

    @property
    def is_answered(self) -> bool:
        return "first sample played" in self.run.answer_ms(self.end_s)

    @property
    def words_off(self) -> int:
        """By how many words what the llm remembers of the old reply differs from what was played of it."""
        old = self.run.last_report(self.onset_s)
        turns = {turn["role"]: turn for turn in self.run.of("turn") if old and turn["segment_id"] == old["segment_id"]}
        question, reply = (turns.get(role, {"text": ""}) for role in ("user", "assistant"))
        heard, kept = reply.get("heard", reply["text"]).split(), self._kept_reply(question["text"]).split()
        in_both = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(heard, kept, strict=False)))
        return max(len(heard), len(kept)) - in_both

    def _kept_reply(self, question: str) -> str:
        """Empty where the reply was left out: the next words of the user are then in the question's message."""
        for asked, answer in pairwise(self.history):
            if asked["content"] == question and answer["role"] == "assistant":
                return answer["content"]
        return ""


def interrupt(gap_s: float) -> Interruption:
    """Interrupts a story so many seconds after it was asked for."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recording, dataflow, history = folder / "said.wav", folder / "dataflow.yml", folder / "history.json"
        onset_s, end_s = _record(recording, gap_s)
        _with_asker(dataflow)
        run = converse(recording, dataflow, HISTORY_OUT=str(history))
        result = json.loads(history.read_text()) if history.exists() else {}
        return Interruption(run, onset_s, end_s, result.get("messages", []))


def _record(path: Path, gap_s: float) -> tuple[float, float]:
    """Returns onset and end of the interruption, in seconds of the recording."""
    samples, rate_hz = soundfile.read(RECORDINGS / "barge-in.wav", dtype="float32")
    ask, stop = spoken("barge-in")
    # The room goes on to be heard: a detector takes longer to hear a voice out of digital silence.
    cut_s = stop["start_s"] - ask["end_s"] - gap_s
    kept = samples[: round(ask["end_s"] * rate_hz)], samples[round((ask["end_s"] + cut_s) * rate_hz) :]
    soundfile.write(path, np.concatenate(kept), rate_hz)
    return stop["start_s"] - cut_s, stop["end_s"] - cut_s


def _with_asker(path: Path) -> None:
    """Writes dataflow.yml with one more node, to be run from any folder."""
    dataflow = yaml.safe_load((ROOT / "dataflow.yml").read_text())
    for node in dataflow["nodes"]:
        node["path"] = str(ROOT / node["path"])
        if node["id"] == "llm":
            node["inputs"]["request"] = _edge("history_asker/request")
    inputs = {"control": _edge("vad/control"), "played": _edge("speaker/played"), "result": _edge("llm/result")}
    dataflow["nodes"].append(
        {"id": "history_asker", "path": str(HISTORY_ASKER), "inputs": inputs, "outputs": ["request"]}
    )
    path.write_text(yaml.safe_dump(dataflow))


def _edge(source: str) -> dict[str, Any]:
    return {"source": source, "queue_size": 1000, "queue_policy": "backpressure"}
