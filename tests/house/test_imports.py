"""Dependencies point one way (DESIGN §4): libraries ← nodes, runtime ← node.py, and dora behind the runtime only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NODES = {folder.name for folder in (ROOT / "nodes").iterdir() if folder.is_dir()}
RUNTIME = Path("libs/streaming/dora_voice/runtime.py")
MODELS = ("ctranslate2", "faster_whisper", "onnx", "onnxruntime", "piper", "torch", "transformers")


def imported(source: str) -> Iterator[str]:
    """Dotted names that a module imports, at its top or inside."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def forbidden_imports(path: Path, source: str) -> list[str]:
    """Imports in the module at `path` (relative to the root) that go against the direction of dependencies."""
    own_node = path.parts[1] if path.parts[0] == "nodes" else None
    other_nodes = {f"dora_voice_{node}" for node in NODES if node != own_node}
    found = []
    for name in imported(source):
        package = name.split(".")[0]
        if package in other_nodes:
            found.append(f"{path} imports the node {package}")
        if package == "dora" and path != RUNTIME:
            found.append(f"{path} imports dora")
        if own_node and path.name != "node.py" and name.startswith("dora_voice.runtime"):
            found.append(f"{path} imports the runtime: that is node.py's")
    return found


def modules() -> Iterator[Path]:
    for folder in ("libs", "nodes"):
        yield from (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py"))


def test_libraries_and_nodes_import_in_one_direction() -> None:
    found = [line for path in modules() for line in forbidden_imports(path, (ROOT / path).read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("libs/session/dora_voice_session/pool.py", "import dora_voice_llm.stage"),
        ("nodes/stt/dora_voice_stt/stage.py", "def f():\n    from dora_voice_vad.endpointing import x"),
        ("nodes/tts/dora_voice_tts/stage.py", "from dora_voice.runtime import serve"),
        ("nodes/tts/dora_voice_tts/stage.py", "from dora_voice import runtime"),
        ("nodes/tts/dora_voice_tts/node.py", "from dora import Node"),
        ("libs/streaming/dora_voice/gate.py", "import dora"),
    ],
)
def test_an_import_against_the_direction_is_found(path: str, source: str) -> None:
    assert len(forbidden_imports(Path(path), source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (str(RUNTIME), "import dora"),
        ("nodes/vad/dora_voice_vad/node.py", "from dora_voice.runtime import serve\nimport dora_voice_vad.stage"),
        ("nodes/llm/dora_voice_llm/stage.py", "from dora_voice_session.session import Session"),
    ],
)
def test_an_import_along_the_direction_is_fine(path: str, source: str) -> None:
    assert forbidden_imports(Path(path), source) == []


def ruff_says(path: str, source: str) -> str:
    command = [sys.executable, "-m", "ruff", "check", "--output-format=concise", f"--stdin-filename={path}", "-"]
    return subprocess.run(command, cwd=ROOT, input=source, capture_output=True, text=True).stdout


def test_ruff_keeps_dora_behind_the_runtime() -> None:
    assert "TID251" in ruff_says("nodes/vad/dora_voice_vad/stage.py", "import dora\n\ndora.Node()\n")
    assert "TID251" not in ruff_says(str(RUNTIME), "import dora\n\ndora.Node()\n")


@pytest.mark.parametrize("model", MODELS)
def test_ruff_keeps_models_out_of_modules_that_are_imported_at_start(model: str) -> None:
    assert "TID253" in ruff_says("nodes/stt/dora_voice_stt/node.py", f"import {model}\n\nprint({model})\n")


@pytest.mark.parametrize("node", sorted(NODES))
def test_a_node_starts_without_importing_a_model(node: str) -> None:
    """So that a wrong setting is refused at once, and a backend that isn't chosen needn't be installed."""
    code = f"import sys, dora_voice_{node}.node; print(*{{name.split('.')[0] for name in sys.modules}} & {set(MODELS)})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == ([], "")
