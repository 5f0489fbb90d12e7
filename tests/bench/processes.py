"""A dataflow under the real dora, and what its nodes need of the machine meanwhile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

LOOKS_EVERY_S = 0.2


@dataclass(slots=True)
class Usage:
    """By node, the loading of the models included."""

    lasted_s: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    memory_mb: dict[str, float] = field(default_factory=dict)


def watched_dora_run(dataflow: Path, timeout_s: float, **env: str) -> Usage:
    """Raises RuntimeError with what was shown if it doesn't end well."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    usage, began_s = Usage(), time.monotonic()
    with tempfile.TemporaryFile("w+") as shown:
        run = subprocess.Popen(
            ["dora", "run", str(dataflow)],
            cwd=dataflow.parent,
            env={**os.environ, "PATH": path, **env},
            stdout=shown,
            stderr=subprocess.STDOUT,
        )
        while run.poll() is None:
            if time.monotonic() - began_s > timeout_s:
                run.kill()
            _look(psutil.Process(run.pid), usage)
            time.sleep(LOOKS_EVERY_S)
        usage.lasted_s = time.monotonic() - began_s
        if run.returncode:
            shown.seek(0)
            raise RuntimeError(f"dora run {dataflow}: exit code {run.returncode}\n{shown.read()}")
    return usage


def _look(root: psutil.Process, usage: Usage) -> None:
    try:
        for process in root.children(recursive=True):
            with process.oneshot():
                if named := re.search(r"dora-voice-(\w+)", " ".join(process.cmdline())):
                    times = process.cpu_times()
                    usage.cpu_s[named[1]] = times.user + times.system
                    resident_mb = process.memory_info().rss / 2**20
                    usage.memory_mb[named[1]] = max(resident_mb, usage.memory_mb.get(named[1], 0))
    except psutil.NoSuchProcess:
        return
