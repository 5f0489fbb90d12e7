"""Runs a dataflow under the real dora."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NODES = ROOT / "tests/dataflow/nodes"


def dora_run(dataflow, cwd, timeout_s=120, **env):
    """`dora run` with the venv of these tests on PATH. Returns the finished process; output is in `stdout`."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["dora", "run", str(dataflow)],
        cwd=cwd,
        env={**os.environ, "PATH": path, **{key: str(value) for key, value in env.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
