"""Every node can be taken alone: a distribution, a manifest that dora reads, a README that says all of it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from dora_voice.stage import Ports

ROOT = Path(__file__).parents[2]
DORA = str(Path(sys.executable).with_name("dora"))
NODES = sorted(folder.name for folder in (ROOT / "nodes").iterdir() if folder.is_dir())
MANIFEST_TYPES = {int: "int", float: "float", bool: "bool"}
LAUNCHER = """\
#!/bin/sh
# dora reads the ports from the dora-node.yml beside this file; the program is the console script.
PATH="$(dirname "$0")/../../.venv/bin:$PATH" exec dora-voice-{node} "$@"
"""

every_node = pytest.mark.parametrize("node", NODES)


def manifest(node: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "nodes" / node / "dora-node.yml").read_text())


def readme(node: str) -> str:
    return (ROOT / "nodes" / node / "README.md").read_text()


def module(node: str) -> Any:
    return importlib.import_module(f"dora_voice_{node}.node")


def test_all_stages_of_the_conversation_are_here() -> None:
    assert {"source", "vad", "stt", "llm", "tts", "speaker", "sink"} <= set(NODES)


@every_node
def test_it_is_a_distribution_with_a_console_script(node: str) -> None:
    project = tomllib.loads((ROOT / "nodes" / node / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"dora-voice-{node}"
    assert project["license"] == "Apache-2.0"
    assert project["scripts"][f"dora-voice-{node}"] == f"dora_voice_{node}.node:main"


@every_node
def test_its_launcher_runs_the_console_script(node: str) -> None:
    launcher = ROOT / "nodes" / node / f"dora-voice-{node}"
    assert launcher.read_text() == LAUNCHER.format(node=node)
    assert os.access(launcher, os.X_OK)


@every_node
def test_dora_accepts_its_manifest(node: str) -> None:
    command = [DORA, "validate", "--node-manifest", str(ROOT / "nodes" / node / "dora-node.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert manifest(node)["entrypoint"] == f"dora-voice-{node}"


@every_node
def test_its_manifest_has_the_ports_of_the_code(node: str) -> None:
    ports: Ports = module(node).PORTS
    assert set(manifest(node).get("inputs", {})) == set(ports.inputs)
    assert set(manifest(node).get("outputs", {})) == set(ports.outputs)


@every_node
def test_only_feedback_needs_no_wire(node: str) -> None:
    ports: Ports = module(node).PORTS
    optional = {
        port for port, declared in manifest(node).get("inputs", {}).items() if declared.get("required") is False
    }
    assert ports.feedback <= optional


@every_node
def test_its_manifest_has_the_settings_of_the_code(node: str) -> None:
    config = module(node).Config
    hints = typing.get_type_hints(config)
    of_the_code = {f.name.upper(): (MANIFEST_TYPES.get(hints[f.name], "string"), f.default) for f in fields(config)}
    declared = manifest(node).get("env", {})
    assert {name: (env.get("type", "string"), env.get("default")) for name, env in declared.items()} == of_the_code
    assert all(env.get("description") for env in declared.values())


@every_node
def test_its_readme_names_every_port_and_setting(node: str) -> None:
    declared = manifest(node)
    named = [name for part in ("inputs", "outputs", "env") for name in declared.get(part, {})]
    assert [name for name in named if f"`{name}`" not in readme(node)] == []


@every_node
def test_its_node_file_stays_short(node: str) -> None:
    assert len((ROOT / f"nodes/{node}/dora_voice_{node}/node.py").read_text().splitlines()) <= 80


def test_each_port_has_a_type_of_its_own() -> None:
    """A type may stand on one output only, so that no two wires can be mistaken for each other.

    The gateway is another source and another speaker: it goes where these go.
    """
    others = [node for node in NODES if node != "gateway"]
    outputs = [port for node in others for port in manifest(node).get("outputs", {}).values()]
    typed = [port["type"] for port in outputs if "type" in port]
    assert len(typed) == len(set(typed))
