"""Sets up `.venv` for the Makefile: an environment, torch, the packages of this workspace, the weights.

    python3 scripts/setup.py          what `make run` needs
    python3 scripts/setup.py --dev    also the tools of `make test`

A finished step leaves a stamp in `.venv/set-up/` that says what it was done for, and is done again only when that has
changed. A step that was interrupted has no stamp, so the next call goes on there. Everything is fetched through pip
as it is configured. Standard library only; Python 3.11 or newer.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMPS = VENV / "set-up"
LOG = STAMPS / "log.txt"

# The same whether this runs in .venv or outside of it, and by whatever name it was called.
BASE_PYTHON = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ANSWER_TIMEOUT_S = 5
MINOR_VERSIONS_TRIED = 6


class SetupError(Exception):
    """Says what failed and, where it is known, what to do."""


def main() -> None:
    dev = "--dev" in sys.argv[1:]
    try:
        with one_set_up_at_a_time():
            set_up(dev)
    except SetupError as failure:
        sys.exit(f"set-up failed: {failure}")
    except KeyboardInterrupt:
        sys.exit("set-up interrupted: the next `make` goes on from here")


def set_up(dev: bool) -> None:
    pyprojects = [ROOT / "pyproject.toml", *package_files()]
    once("environment", f"{BASE_PYTHON} {PYTHON_VERSION} {ROOT}", make_environment)
    once("torch", os.environ.get("TORCH") or stamped("torch") or "chosen", install_torch)
    once("packages", digest(*pyprojects, Path(__file__)), install_packages)
    if dev:
        once("tools", digest(ROOT / "pyproject.toml"), install_tools)
        fetch_weights("dora-voice-vad-weights")
    fetch_weights("dora-voice-llm-weights")


def once(step: str, wanted: str, work: Callable[[], None]) -> None:
    """Does `work` unless its stamp says that it was done for `wanted`."""
    if stamped(step) == wanted:
        return
    started_s = time.monotonic()
    forget_half_installed()
    work()
    stamp = STAMPS / step
    stamp.with_suffix(".new").write_text(wanted)
    stamp.with_suffix(".new").rename(stamp)
    say(f"  {step}: done in {time.monotonic() - started_s:.0f} s")


def stamped(step: str) -> str | None:
    try:
        return (STAMPS / step).read_text()
    except OSError:
        return None


# The steps


def make_environment() -> None:
    try:
        import ensurepip  # noqa: F401  (Debian packs it apart from Python)
    except ImportError:
        raise SetupError(
            f"this Python ({sys.executable}) can't make virtual environments. "
            f"Run: sudo apt install python{PYTHON_VERSION}-venv"
        ) from None
    say(f"Making .venv with Python {PYTHON_VERSION} ({BASE_PYTHON})")
    made_for_another_python_or_folder = stamped("environment") is not None
    clear = ["--clear"] if made_for_another_python_or_folder else []
    call("making the virtual environment", [BASE_PYTHON, "-m", "venv", *clear, str(VENV)])


def install_torch() -> None:
    requirement, index, why = choose_torch()
    say(f"Installing {requirement} ({why})")
    pip("installing torch", "install", *index, requirement)


def install_packages() -> None:
    packages = [str(file.parent) for file in package_files()]
    say(f"Installing dora, the {len(packages)} packages of this workspace and what they need (a few minutes)")
    # A package that doesn't take the torch that was chosen shall say so, not replace it by gigabytes of another build.
    keep_torch = STAMPS / "constraints.txt"
    keep_torch.write_text(f"torch=={installed_version('torch')}\n")
    dora = workspace()["project"]["dependencies"]
    editables = [part for package in packages for part in ("-e", package)]
    pip("installing the packages", "install", "-c", str(keep_torch), *dora, *editables)


def install_tools() -> None:
    tools = workspace()["dependency-groups"]["dev"]
    say(f"Installing the tools of `make test`: {', '.join(tools)}")
    pip("installing the tools", "install", *tools)


def fetch_weights(command: str) -> None:
    """They lie outside of .venv, so no stamp here can speak for them; the command itself does nothing twice."""
    if code := subprocess.run([VENV / "bin" / command]).returncode:
        raise SetupError(f"fetching the weights (exit code {code}); what it said stands above")


# Which torch


def choose_torch() -> tuple[str, list[str], str]:
    """The requirement to install, the pip options that find it, and why this one."""
    if given := os.environ.get("TORCH"):
        return given, [], "as TORCH says"
    if has_nvidia_gpu():
        return "torch", [], "nvidia-smi lists a GPU"
    index = ["--extra-index-url", TORCH_CPU_INDEX] if answers(f"{TORCH_CPU_INDEX}/torch/") else []
    listed = "PyTorch's CPU index answers" if index else "PyTorch's CPU index doesn't answer"
    say(f"No NVIDIA GPU here: looking for a CPU build of torch ({listed})")
    for version in candidates(available_versions(pip("listing torch", "index", "versions", *index, "torch"))):
        report = dry_run(f"torch=={version}", index)
        if report and is_cpu_build(report["install"][0]):
            found = report["install"][0]
            return f"torch=={found['metadata']['version']}", index, f"CPU build, from {source(found)}"
    raise SetupError(
        f"no CPU build of torch found for Python {PYTHON_VERSION}: {listed}, and what pip is configured to use "
        "has none. Name one: make run TORCH=/path/to/torch.whl (or any pip requirement; "
        "TORCH=torch takes pip's default, a CUDA build of several GB)"
    )


def available_versions(pip_index_output: str) -> list[str]:
    """The versions that `pip index versions` printed, newest first."""
    found = re.search(r"^Available versions: (.*)$", pip_index_output, re.MULTILINE)
    return found[1].split(", ") if found else []


def candidates(versions: list[str]) -> list[str]:
    """Versions worth asking about: those named as CPU builds, then the newest patch of the newest minor versions.

    On some platforms the plain wheels are CPU builds up to some version, so the newest alone doesn't tell.
    """
    named = [version for version in versions if version.endswith("+cpu")]
    newest: dict[str, str] = {}
    for version in versions:
        if "+" not in version:
            newest.setdefault(".".join(version.split(".")[:2]), version)
    return named + list(newest.values())[:MINOR_VERSIONS_TRIED]


def is_cpu_build(install: dict[str, Any]) -> bool:
    """Whether an entry of pip's report asks for nothing of NVIDIA's."""
    requires = install["metadata"].get("requires_dist", [])
    return not any(re.match(r"(nvidia|cuda|triton)\b", requirement) for requirement in requires)


def source(install: dict[str, Any]) -> str:
    """Where an entry of pip's report comes from: a host, or a folder on this machine."""
    url = urlsplit(install["download_info"]["url"])
    return url.hostname or str(Path(unquote(url.path)).parent)


def dry_run(requirement: str, index: list[str]) -> dict[str, Any] | None:
    """pip's report of what it would install for `requirement` alone; None when it can't."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        options = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", report.name]
        try:
            pip(f"looking at {requirement}", "install", *options, *index, requirement)
        except SetupError:
            return None
        return json.load(report)


def has_nvidia_gpu() -> bool:
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=30).stdout.startswith(b"GPU")
    except (OSError, subprocess.TimeoutExpired):
        return False


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT_S):
            return True
    except (OSError, HTTPException):
        return False


# Means


def workspace() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def package_files() -> list[Path]:
    return sorted([*ROOT.glob("libs/*/pyproject.toml"), *ROOT.glob("nodes/*/pyproject.toml")])


def forget_half_installed() -> None:
    """pip takes what was killed while it was installed or removed for installed: let it install that anew."""
    for metadata in VENV.glob("lib/python3*/site-packages/*.dist-info"):
        if not is_whole(metadata):
            shutil.rmtree(metadata)


def is_whole(metadata: Path) -> bool:
    """Whether a package has its RECORD, which pip writes last, and every file that it lists."""
    record = metadata / "RECORD"
    if not record.exists():
        return False
    files = (row[0] for row in csv.reader(record.read_text().splitlines()) if row)
    return all(Path(metadata.parent, file).exists() for file in files if not file.endswith(".pyc"))


def installed_version(package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return call(f"asking for the version of {package}", [str(VENV / "bin/python"), "-c", code]).strip()


def pip(doing: str, command: str, *arguments: str) -> str:
    options = ["--disable-pip-version-check", "--no-input"]
    return call(doing, [str(VENV / "bin/python"), "-m", "pip", command, *options, *arguments])


def call(doing: str, command: list[str]) -> str:
    """Runs `command`, its output into the log. Raises SetupError with its errors."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    except OSError as error:
        raise SetupError(f"{doing}: {error}") from None
    STAMPS.mkdir(parents=True, exist_ok=True)
    with LOG.open("a") as log:
        log.write(f"$ {' '.join(command)}\n{done.stdout}\n")
    if done.returncode:
        raise SetupError(f"{doing} (exit code {done.returncode})\n{end_of(done.stdout)}\nall of it: {LOG}")
    return done.stdout


def end_of(output: str) -> str:
    """The errors of pip's output, or else its last lines."""
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lstrip().startswith("ERROR")]
    return "\n".join(f"    {line}" for line in (errors or lines)[-8:])


def digest(*files: Path) -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


@contextmanager
def one_set_up_at_a_time() -> Iterator[None]:
    with Path(__file__).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another set-up of this folder is running: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
