"""Cuts a voice's model before its decoder, once per user and voice: it takes half a second and 150 MB of memory.

The first half has to see the whole clause, to know how long each sound is and how it is said. The decoder turns that
into samples and looks at a small part of it at a time.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dora_voice.config import cache_folder

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

DECODER_STARTS_AT = "/dec/conv_pre/Conv"
"""The node's name in every VITS model that Piper exported."""
DURATIONS_NODE = "/Ceil"
"""The node that says how many frames each id takes, by its name in all of them."""
SPEAKER_INPUT = "sid"
"""Which of its speakers talks. The decoder wants to know that, too."""
VERSION = 2
"""Goes up when the halves change."""


def halves(model: Path) -> tuple[Path, Path]:
    """The files of a model's first half and its decoder. Raises ValueError for one that can't be cut, and OSError."""
    folder = _folder(model)
    if not folder.is_dir():
        _make(model, folder)
    return folder / "encoder.onnx", folder / "decoder.onnx"


def cut(model: ModelProto) -> tuple[ModelProto, ModelProto]:
    """The first half, which gives what the second one takes first, and the frames of each id. Raises ValueError."""
    import onnx
    from onnx.utils import Extractor

    graph = model.graph
    between, durations = _node(graph, DECODER_STARTS_AT).input[0], _node(graph, DURATIONS_NODE).output[0]
    # Models that were optimised don't describe what is inside of them.
    for name in (between, durations):
        graph.value_info.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    inputs = [each.name for each in graph.input]
    extract = Extractor(model).extract_model
    for_decoder = [between, *(name for name in inputs if name == SPEAKER_INPUT)]
    return extract(inputs, [between, durations]), extract(for_decoder, [graph.output[0].name])


def _node(graph: GraphProto, name: str) -> NodeProto:
    for node in graph.node:
        if node.name == name:
            return node
    raise ValueError(f"it has no node {name}")


def _folder(model: Path) -> Path:
    """Its name changes with the model's content."""
    with model.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    return cache_folder() / f"piper-{model.stem}-{content}-{VERSION}"


def _make(model: Path, folder: Path) -> None:
    """Whole or not at all. If two do it at once, the first one's is taken."""
    import onnx

    encoder, decoder = cut(onnx.load(str(model)))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.tmp-", dir=folder.parent) as temporary:
        made = Path(temporary, "made")
        made.mkdir()
        onnx.save(encoder, str(made / "encoder.onnx"))
        onnx.save(decoder, str(made / "decoder.onnx"))
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
