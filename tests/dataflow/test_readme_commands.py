"""Everything that the READMEs tell their reader to type is typed here."""

import os
import shutil
import subprocess
import sys
import venv

import pytest
from dora_run import ROOT, dora_run
from readme import code_blocks, write_files

TWO_COMMANDS, YOUR_OWN, REPORT, *TALK = code_blocks(ROOT / "README.md", "sh")


def sh(script, cwd, **env):
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=cwd,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    return run.stdout


def test_the_two_commands_are_make_run_and_make_test_and_ci_runs_the_second():
    assert [line.split("#")[0].strip() for line in TWO_COMMANDS.splitlines()] == ["make run", "make test"]
    assert "make test" in (ROOT / ".ci/run").read_text()


def test_make_run_shows_a_conversation(tmp_path):
    shown = sh("make run", ROOT, OUT_DIR=str(tmp_path))
    assert "What is the capital of France?" in shown
    assert "summary: 3 user turns, 3 replies" in shown
    assert {"conversation.jsonl", "speaker.wav", "reply-default-1.wav"} <= {path.name for path in tmp_path.iterdir()}


def test_your_own_recording_and_folder():
    shutil.rmtree(ROOT / "out/barge-in", ignore_errors=True)
    shown = sh(YOUR_OWN, ROOT)
    assert shown.count("1 interrupted") == 2
    assert "All type annotations OK." in shown
    assert (ROOT / "out/barge-in/conversation.jsonl").exists()
    sh(REPORT, ROOT)
    assert (ROOT / "out/barge-in/report.html").exists()
    assert (ROOT / "out/barge-in/report.png").exists()


def test_paths_are_relative_to_where_the_user_stands(tmp_path):
    shutil.copy(ROOT / "tests/recordings/silence.wav", tmp_path / "a recording.wav")
    run = dora_run(ROOT / "dataflow.yml", tmp_path, AUDIO_IN="a recording.wav", OUT_DIR="my results", **FAKES)
    assert run.returncode == 0, run.stdout
    assert (tmp_path / "my results/conversation.jsonl").exists()


FAKES = {"STT_BACKEND": "fake", "LLM_BACKEND": "fake", "TTS_BACKEND": "fake", "PACE": "fast"}


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """A fresh environment with nothing but the vad node and dora."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    packages = [ROOT / "libs/streaming", ROOT / "nodes/vad", "dora-rs-cli>=1.1,<2"]
    subprocess.run([folder / "bin/pip", "install", "--quiet", *packages], check=True)
    return folder / "bin"


def test_the_vad_node_runs_in_a_foreign_dataflow_without_torch(tmp_path, bare_python):
    write_files(ROOT / "nodes/vad/README.md", tmp_path)
    shutil.copy(ROOT / "tests/recordings/short-answers.wav", tmp_path / "speech.wav")
    path = f"{bare_python}:{os.environ['PATH']}"
    shown = sh("dora run dataflow.yml", tmp_path, PATH=path, VIRTUAL_ENV=str(bare_python.parent))
    printed = [line.split("printer: ")[1].split() for line in shown.splitlines() if "printer: " in line]
    verbs = [words[0] for words in printed if "segment" in words]
    assert [verb for verb in verbs if verb not in ("pause", "flush")] == ["start", "commit"] * 4
    installed = subprocess.run([bare_python / "pip", "list"], check=True, capture_output=True, text=True).stdout
    assert "torch" not in installed


def test_the_stage_in_the_readme_of_the_library_passes_its_tests(tmp_path):
    write_files(ROOT / "libs/streaming/README.md", tmp_path)
    assert "2 passed" in sh(f"{sys.executable} -m pytest -q -p no:cacheprovider test_shout.py", tmp_path)


def test_the_llm_readmes_node_asks_and_is_answered(tmp_path):
    write_files(ROOT / "nodes/llm/README.md", tmp_path)
    run = dora_run(tmp_path / "dataflow.yml", tmp_path, BACKEND="fake", HISTORY_DIR=tmp_path / "state")
    assert run.returncode == 0, run.stdout
    assert "You said: What is the capital of France?" in run.stdout
