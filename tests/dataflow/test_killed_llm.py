"""kill -9 of the llm node in the middle of a reply: the conversation goes on, and remembers."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import soundfile
from dora_run import ROOT, dora_run

RECORDING = ROOT / "tests/recordings/three-questions"
RATE_HZ = 16_000
PAUSE_S = 15
"""Longer than the node takes to come back."""
WORDS = ("My name is Anna.", "Please tell me a long story about the sea.", "What is my name?")


def with_a_pause_before_the_third_question(path):
    samples, _ = soundfile.read(f"{RECORDING}.wav", dtype="float32")
    speech = json.loads(Path(f"{RECORDING}.json").read_text())["speech"]
    at = round((speech[1]["end_s"] + speech[2]["start_s"]) / 2 * RATE_HZ)
    soundfile.write(path, np.concatenate([samples[:at], np.zeros(PAUSE_S * RATE_HZ), samples[at:]]), RATE_HZ)


def kill_when_it_answers_the_second_question(history_dir, has_ended):
    """Returns the history as it was when the node was killed."""
    while not has_ended.is_set():
        for journal in history_dir.glob("*.jsonl"):
            lines = journal.read_text().splitlines()
            if sum('"replied"' in line and '"turn": 2' in line for line in lines) >= 4:
                os.kill(llm_process(history_dir), signal.SIGKILL)
                return
        time.sleep(0.001)


def llm_process(history_dir):
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:
            continue
        if b"bin/dora-voice-llm" in command and f"HISTORY_DIR={history_dir}".encode() in environment:
            return int(process.name)
    raise AssertionError("no llm process")


def test_the_next_turn_after_a_kill_remembers_the_turns_before_it(tmp_path):
    with_a_pause_before_the_third_question(tmp_path / "in.wav")
    env = {"AUDIO_IN": tmp_path / "in.wav", "OUT_DIR": tmp_path / "out", "HISTORY_DIR": tmp_path / "state"}
    fakes = {"STT_BACKEND": "fake", "FAKE_TEXTS": "|".join(WORDS), "TTS_BACKEND": "fake"}
    has_ended = threading.Event()
    killer = threading.Thread(target=kill_when_it_answers_the_second_question, args=(tmp_path / "state", has_ended))
    killer.start()
    try:
        run = dora_run(ROOT / "dataflow.yml", tmp_path, **env, **fakes)
    finally:
        has_ended.set()
        killer.join()
    assert run.returncode == 0, run.stdout
    events = [json.loads(line) for line in (tmp_path / "out/conversation.jsonl").read_text().splitlines()]
    said = {(event["role"], event["segment_id"]): event for event in events if event["event"] == "turn"}
    assert [said["user", segment]["text"] for segment in (1, 2, 3)] == list(WORDS)
    assert "error" not in said["assistant", 1]
    assert said["assistant", 2]["error"] == "restarted: node llm crashed"
    assert said["assistant", 3]["text"]
    assert "error" not in said["assistant", 3]
    assert "goes on after a restart with 2 turns" in run.stdout
    counted = re.findall(r"segment=(\d+) prefilled=(\d+) ahead=(\d+) reused=(\d+)", run.stdout)
    prompts = {int(segment): sum(map(int, counts)) for segment, *counts in counted}
    assert prompts[3] > prompts[1] + 20, "the earlier turns are part of the prompt"
    assert list((tmp_path / "state").iterdir()) == [], "a run that ended leaves nothing to go on with"
