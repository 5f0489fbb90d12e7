"""`make run` and `make test` set up first, pass AUDIO_IN and OUT_DIR on, and are as honest as what they run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FAKE_DORA = """\
#!/bin/sh
echo "dora $*"
echo "from $(pwd) AUDIO_IN=$AUDIO_IN OUT_DIR=$OUT_DIR"
exit ${DORA_EXIT:-0}
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The Makefile in a folder with a space in its name, with a set-up and a dora that only talk."""
    clone = tmp_path / "my clone"
    (clone / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", clone)
    (clone / "scripts/setup.py").write_text(
        "import os, sys; print('set-up', *sys.argv[1:]); sys.exit(os.getenv('FAIL'))"
    )
    dora = clone / ".venv/bin/dora"
    dora.parent.mkdir(parents=True)
    dora.write_text(FAKE_DORA)
    dora.chmod(0o755)
    return clone


def make(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs make as from the shell of a user who stands in `cwd`."""
    outer = {
        key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS", "AUDIO_IN", "OUT_DIR"))
    }
    command = ["make", *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env={**outer, "PWD": str(cwd), "PYTHON": sys.executable, **env},
        capture_output=True,
        text=True,
    )


def test_run_sets_up_and_runs_the_dataflow(clone: Path) -> None:
    done = make("run", cwd=clone)
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == [
        "set-up",
        f"dora run {clone}/dataflow.yml --log-level info --log-filter sink=stdout",
    ]


def test_make_alone_is_make_run(clone: Path) -> None:
    assert make(cwd=clone).stdout == make("run", cwd=clone).stdout


def test_settings_are_passed_on_from_either_side_of_make_with_spaces(clone: Path) -> None:
    said = f"from {clone} AUDIO_IN=my voice.wav OUT_DIR=my out"
    assert said in make("run", "AUDIO_IN=my voice.wav", "OUT_DIR=my out", cwd=clone).stdout
    assert said in make("run", cwd=clone, AUDIO_IN="my voice.wav", OUT_DIR="my out").stdout


def test_who_stands_elsewhere_means_paths_from_there(clone: Path, tmp_path: Path) -> None:
    done = make("-C", str(clone), "run", "AUDIO_IN=x.wav", cwd=tmp_path)
    assert f"from {tmp_path} AUDIO_IN=x.wav" in done.stdout


def test_a_shells_stale_folder_is_not_believed(clone: Path, tmp_path: Path) -> None:
    assert f"from {clone} " in make("run", cwd=clone, PWD=str(tmp_path)).stdout


def test_a_failed_set_up_runs_nothing(clone: Path) -> None:
    done = make("run", cwd=clone, FAIL="1")
    assert done.returncode != 0
    assert "dora" not in done.stdout


def test_a_failed_run_fails_make(clone: Path) -> None:
    assert make("run", cwd=clone, DORA_EXIT="3").returncode != 0


def test_without_a_new_enough_python_it_says_what_to_do(clone: Path) -> None:
    done = make("run", "PYTHON=", cwd=clone)
    assert done.returncode != 0
    assert "No Python 3.11 or newer found" in done.stderr
    assert "sudo apt install" in done.stderr


def test_the_tests_need_the_tools_too(clone: Path) -> None:
    assert "set-up --dev" in make("test", cwd=clone).stdout
