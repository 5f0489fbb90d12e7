"""kill -9 of any node in the middle of a turn: the conversation goes on, and remembers."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import soundfile
from dora_run import ROOT

RECORDING = ROOT / "tests/recordings/three-questions"
RATE_HZ = 16_000
TIMEOUT_S = 240
WORDS = ("My name is Anna.", "Please tell me something that takes you about five seconds to say.", "What is my name?")
FAKES = {"STT_BACKEND": "fake", "FAKE_TEXTS": "|".join(WORDS), "TTS_BACKEND": "fake"}


class Kill(NamedTuple):
    """When a node is killed: at this event of the second turn; and where its end shows."""

    event: str
    output: str
    pause_s: float = 4
    """So much more time before the third question, because the node has to be back by then."""


KILLS = {
    "llm": Kill("reply", "llm.text", pause_s=30),
    "vad": Kill("start", "vad.control"),
    "stt": Kill("start", "stt.text"),
    "tts": Kill("played", "tts.audio"),
    "speaker": Kill("played", "speaker.played"),
    "sink": Kill("played", "sink"),
}


class Run(NamedTuple):
    returncode: int
    output: str
    folder: Path
    killed_in: int
    """The segment."""

    @property
    def events(self):
        return [json.loads(line) for line in (self.folder / "out/conversation.jsonl").read_text().splitlines()]

    def turns(self):
        return {(event["role"], event["segment_id"]): event for event in self.events if event["event"] == "turn"}


def with_a_pause_before_the_third_question(path, pause_s):
    samples, _ = soundfile.read(f"{RECORDING}.wav", dtype="float32")
    speech = json.loads(Path(f"{RECORDING}.json").read_text())["speech"]
    at = round((speech[1]["end_s"] + speech[2]["start_s"]) / 2 * RATE_HZ)
    soundfile.write(path, np.concatenate([samples[:at], np.zeros(round(pause_s * RATE_HZ)), samples[at:]]), RATE_HZ)


def descendants(pid):
    children = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in parentheses, may hold anything.
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(process.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]


def process_of(node, dora):
    command = f"/dora-voice-{node}\0".encode()
    found = [pid for pid in descendants(dora.pid) if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(command)]
    (pid,) = found
    return pid


def second_turn(journal, event):
    """The segment of the second turn, once this has happened in it."""
    try:
        events = [json.loads(line) for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
    except OSError:
        return None
    begun = [each["segment_id"] for each in events if each["event"] == "start"]
    happened = [each["segment_id"] for each in events if each["event"] == event]
    if event == "reply":
        # The llm remembers what is committed. By the third fragment after it, the commit has reached it, too.
        commits = [i for i, each in enumerate(events) if each["event"] == "commit"]
        since = events[commits[-1] :] if commits else []
        mine = [each for each in since if each["segment_id"] == since[0]["segment_id"]]
        happened = [each["segment_id"] for each in mine if each["event"] == event][2:]
    answered = [each["segment_id"] for each in events if each["event"] == "turn" and each["role"] == "assistant"]
    return next((segment for segment in begun if answered and segment > answered[0] and segment in happened), None)


def hold(node, folder):
    """A conversation in which this node is killed in the second turn."""
    with_a_pause_before_the_third_question(folder / "in.wav", KILLS[node].pause_s)
    env = {"AUDIO_IN": folder / "in.wav", "OUT_DIR": folder / "out", "HISTORY_DIR": folder / "state"} | FAKES
    env |= {
        "LLM_BACKEND": "" if node == "llm" else "fake",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    with (folder / "log").open("w") as log:
        dora = subprocess.Popen(
            ["dora", "run", str(ROOT / "dataflow.yml")],
            cwd=folder,
            env={**os.environ, **{key: str(value) for key, value in env.items()}},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        too_long = threading.Timer(TIMEOUT_S, dora.terminate)
        too_long.start()
        killed_in = 0
        while dora.poll() is None:
            if not killed_in and (segment := second_turn(folder / "out/conversation.jsonl", KILLS[node].event)):
                os.kill(process_of(node, dora), signal.SIGKILL)
                killed_in = segment
            time.sleep(0.005)
        too_long.cancel()
    return Run(dora.returncode, (folder / "log").read_text(), folder, killed_in)


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """Those of the tests that were chosen, two at a time: they take as long as their recording, and do little."""
    chosen = {
        node for item in request.session.items if item.path == request.path for node in item.callspec.params.values()
    }
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {node: pool.submit(hold, node, tmp_path_factory.mktemp(node)) for node in KILLS if node in chosen}


@pytest.mark.parametrize("node", KILLS)
def test_the_conversation_goes_on_after_a_kill(node, runs):
    run = runs[node].result()
    assert run.returncode == 0, run.output
    assert run.killed_in, run.output
    assert run.output.count("restarting node after failure") == 1

    errors = [event for event in run.events if event["event"] == "error"]
    assert {event["segment_id"] for event in errors} == {run.killed_in}
    assert errors[0]["output"] == KILLS[node].output
    assert errors[0]["error"] == f"restarted: node {node} crashed"

    turns = run.turns()
    assert turns["user", 1]["text"] == WORDS[0]
    assert turns["assistant", 1]["text"]
    last = max(segment for _, segment in turns)
    assert last > run.killed_in
    start = next(event for event in run.events if event["event"] == "start" and event["segment_id"] == last)
    assert start["audio_ms"] > 1000 * json.loads(Path(f"{RECORDING}.json").read_text())["speech"][2]["start_s"]
    assert turns["user", last]["text"] in WORDS
    assert turns["assistant", last]["text"]
    assert [key for key, turn in turns.items() if "error" in turn and key[1] != run.killed_in] == []

    sounds = {path.name: soundfile.read(path)[0] for path in (run.folder / "out").glob("*.wav")}
    assert {"speaker.wav", "reply-default-1.wav", f"reply-default-{last}.wav"} <= sounds.keys()
    assert all(len(sound) for sound in sounds.values())


@pytest.mark.parametrize("node", ["speaker"])
def test_a_speaker_that_was_killed_goes_on_in_another_file(node, runs):
    run = runs[node].result()
    for name in ("speaker.wav", "speaker-2.wav"):
        assert np.abs(soundfile.read(run.folder / "out" / name)[0]).max() > 0.01
    turn = run.turns()["assistant", run.killed_in]
    assert len(turn["heard"]) < len(turn["text"])


@pytest.mark.parametrize("node", ["llm"])
def test_the_next_turn_remembers_the_turns_before_the_llm_was_killed(node, runs):
    run = runs[node].result()
    turns = run.turns()
    assert [turns["user", segment]["text"] for segment in (1, 2, 3)] == list(WORDS)
    assert turns["assistant", 2]["error"] == "restarted: node llm crashed"
    assert "goes on after a restart with 2 turns" in run.output
    counted = re.findall(r"segment=(\d+) prefilled=(\d+) ahead=(\d+) reused=(\d+)", run.output)
    prompts = {int(segment): sum(map(int, counts)) for segment, *counts in counted}
    assert prompts[3] > prompts[1] + 20, "the earlier turns are part of the prompt"
    assert list((run.folder / "state").iterdir()) == [], "a run that ended leaves nothing to go on with"
