"""The wiring of dataflow.yml is checked by dora: crossed wires don't pass validation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DORA = str(Path(sys.executable).with_name("dora"))


def conversation() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "dataflow.yml").read_text())


def wire(dataflow: dict[str, Any], node: str, port: str, source: str) -> None:
    """Connects input `port` of `node` to `source`, with the queue that it had."""
    inputs = next(declared for declared in dataflow["nodes"] if declared["id"] == node)["inputs"]
    inputs[port] = {**inputs[port], "source": source} if isinstance(inputs.get(port), dict) else source


def validate(dataflow: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """Asks dora; it finds the nodes' manifests relative to the dataflow."""
    (folder / "nodes").symlink_to(ROOT / "nodes")
    (folder / "dataflow.yml").write_text(yaml.safe_dump(dataflow))
    command = [DORA, "validate", str(folder / "dataflow.yml"), "--strict-types"]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_conversation_is_wired_right(tmp_path: Path) -> None:
    done = validate(conversation(), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("node", "port", "source"),
    [
        pytest.param("sink", "hypothesis", "stt/text", id="text into hypothesis"),
        pytest.param("llm", "text", "stt/hypothesis", id="hypothesis into text"),
        pytest.param("speaker", "audio", "vad/speech", id="speech into the speaker"),
        pytest.param("speaker", "audio", "source/audio", id="the user's own sound into the speaker"),
        pytest.param("llm", "text", "vad/control", id="control into the llm's text"),
        pytest.param("tts", "text", "vad/control", id="control into the tts's text"),
        pytest.param("tts", "text", "stt/text", id="the user's words into the tts"),
        pytest.param("stt", "speech", "source/audio", id="sound that is no speech into the stt"),
    ],
)
def test_a_crossed_wire_does_not_pass(node: str, port: str, source: str, tmp_path: Path) -> None:
    dataflow = conversation()
    wire(dataflow, node, port, source)
    done = validate(dataflow, tmp_path)
    assert done.returncode != 0
    assert f'node "{node}": type mismatch on input "{port}"' in done.stdout


def test_every_edge_has_a_queue_size() -> None:
    """dora's default of 10 drops the oldest (DESIGN §3.2)."""
    edges = [
        (node["id"], port, edge) for node in conversation()["nodes"] for port, edge in node.get("inputs", {}).items()
    ]
    assert [(node, port) for node, port, edge in edges if not (isinstance(edge, dict) and "queue_size" in edge)] == []
