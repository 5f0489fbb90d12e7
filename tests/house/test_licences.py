"""Whoever ships this finds the licence of everything that `make run` installs by name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def dependencies() -> Iterator[str]:
    """Names of what the distributions of this workspace ask for, extras included, themselves excluded."""
    for file in [ROOT / "pyproject.toml", *ROOT.glob("libs/*/pyproject.toml"), *ROOT.glob("nodes/*/pyproject.toml")]:
        project = tomllib.loads(file.read_text())["project"]
        extras = project.get("optional-dependencies", {}).values()
        asked = project.get("dependencies", []) + [requirement for extra in extras for requirement in extra]
        yield from (re.split(r"[^\w.-]", requirement)[0] for requirement in asked)


def test_every_dependency_stands_in_the_table() -> None:
    tables = "\n".join(line for line in (ROOT / "LICENSES.md").read_text().splitlines() if line.startswith("|"))
    named = set(re.findall(r"[\w.-]+", tables))
    assert {name for name in dependencies() if not name.startswith("dora-voice")} <= named


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
