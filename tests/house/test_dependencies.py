"""What is imported is declared, so that a fresh installation has it and each distribution can be taken alone."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = sorted(file.parent for folder in ("libs", "nodes") for file in (ROOT / folder).glob("*/pyproject.toml"))
PROVIDERS = packages_distributions()


def pyproject(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def declared(folder: Path) -> set[str]:
    """Names of the distributions that the one in `folder` asks for, extras included."""
    project = pyproject(folder)["project"]
    extras = project.get("optional-dependencies", {}).values()
    return names([*project.get("dependencies", []), *(requirement for extra in extras for requirement in extra)])


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}


def undeclared(folder: Path, declared: set[str], own: set[str]) -> list[str]:
    """Imports of modules under `folder` that no declared distribution provides."""
    return [
        f"{path.relative_to(ROOT)} imports {package}"
        for path in sorted(folder.rglob("*.py"))
        for package in sorted(set(imported(path)) - own)
        if not declared & {name.replace("_", "-").lower() for name in PROVIDERS.get(package, [package])}
    ]


def imported(path: Path) -> Iterator[str]:
    """Top-level packages that a module imports, without the standard library."""
    for node in ast.walk(ast.parse(path.read_text())):
        found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        yield from (top for name in found if (top := name.split(".")[0]) not in sys.stdlib_module_names)


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda folder: folder.name)
def test_a_distribution_declares_what_it_imports(folder: Path) -> None:
    own = {path.name for path in folder.iterdir() if path.is_dir()}
    assert undeclared(folder, declared(folder), own) == []


def test_the_tests_use_what_is_set_up_for_them() -> None:
    set_up = names(pyproject(ROOT)["dependency-groups"]["dev"]) | declared(ROOT)
    for folder in DISTRIBUTIONS:
        set_up |= {pyproject(folder)["project"]["name"]} | declared(folder)
    own = {path.stem for folder in ("tests", "course") for path in (ROOT / folder).rglob("*.py")}
    own |= {path.name for path in (ROOT / "tests").iterdir()}
    assert undeclared(ROOT / "tests", set_up, own) == []
