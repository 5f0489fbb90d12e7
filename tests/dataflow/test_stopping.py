"""Ctrl-C at any moment ends everything, with the files complete up to then."""

import json
import os
import signal
import subprocess
import sys
import wave
from pathlib import Path
from threading import Timer

import pytest
from dora_run import NODES, ROOT

LONGEST_RUN_S = 120
FAKES = {"STT_BACKEND": "fake", "LLM_BACKEND": "fake", "TTS_BACKEND": "fake", "FAKE_TEXTS": "Tell me a story!"}


def run_until(line, dataflow, cwd, **env):
    """Runs a dataflow, and presses Ctrl-C when `line` appears. Returns the exit code and what was shown."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = subprocess.Popen(
        ["dora", "run", str(dataflow)],
        cwd=cwd,
        env={**os.environ, "PATH": path, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    # Should dora itself hang at the start, this fails, and doesn't wait for ever.
    hanging = Timer(LONGEST_RUN_S, os.killpg, (run.pid, signal.SIGKILL))
    hanging.start()
    shown = []
    for one in run.stdout:
        shown.append(one)
        if line in one:
            # As a terminal does: to the whole process group.
            os.killpg(run.pid, signal.SIGINT)
            line = "\0"
    hanging.cancel()
    # dora kills a node that doesn't stop, after 10 s: no node may need that.
    assert line == "\0", f"never shown: {line}"
    return run.wait(), "".join(shown)


@pytest.mark.parametrize("moment", ["all nodes are ready", "you  Tell me a story!", "robot  Once upon a time"])
def test_a_conversation_is_stopped_with_its_files_complete(tmp_path, moment):
    code, shown = run_until(moment, ROOT / "dataflow.yml", ROOT, OUT_DIR=str(tmp_path), **FAKES)
    assert code == 0, shown
    assert "SIGTERM" not in shown
    assert "summary:" in shown
    events = [json.loads(line) for line in (tmp_path / "conversation.jsonl").read_text().splitlines()]
    assert len([event for event in events if event["event"] == "turn"]) <= 2, "it was cut"
    if moment.startswith("robot"):
        assert [event["role"] for event in events if event["event"] == "turn"] == ["user", "assistant"]
        for name in ("speaker.wav", "reply-default-1.wav"):
            with wave.open(str(tmp_path / name)) as file:
                assert file.getnframes() > 0


def test_a_node_that_is_loading_its_model_is_stopped_too(tmp_path):
    dataflow = tmp_path / "dataflow.yml"
    dataflow.write_text(f"""
nodes:
  - {{id: loading, path: {NODES}/slow_to_load.py, inputs: {{text: loading/text}}, outputs: [text]}}
""")
    _, shown = run_until("stdout loading: loading", dataflow, tmp_path)
    assert "SIGTERM" not in shown
