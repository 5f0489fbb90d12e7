"""The sink of the streaming chapter, wired to the worst road there may be."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import yaml
from check_course import COURSE
from dora_run import dora_run

SENDER = """
import json
import pyarrow as pa
from dora import Node

node = Node()
for character, metadata in json.load(open("fragments.json")):
    node.send_output("text", pa.array([character]), metadata)
"""


def test_shuffled_and_doubled_fragments_of_many_sessions_are_neither_lost_nor_mixed(tmp_path: Path) -> None:
    chance = random.Random(0)
    sentences = {str(n): "".join(chance.choices("小莫说一个字再说两三四五六七八九十", k=n)) for n in range(1, 41)}
    fragments = [
        (character, {"session_id": name, "seq": str(seq), "fin": str(seq == len(sentence) - 1).lower()})
        for name, sentence in sentences.items()
        for seq, character in enumerate(sentence)
    ]
    fragments += chance.sample(fragments, len(fragments) // 2)
    chance.shuffle(fragments)
    (tmp_path / "fragments.json").write_text(json.dumps(fragments))
    (tmp_path / "sender.py").write_text(SENDER)
    text = {"source": "sender/text", "queue_size": len(fragments), "queue_policy": "backpressure"}
    nodes = [
        {"id": "sender", "path": "sender.py", "outputs": ["text"]},
        {"id": "sink", "path": str(COURSE / "ch06-streaming/sink.py"), "inputs": {"text": text}},
    ]
    (tmp_path / "dataflow.yml").write_text(yaml.safe_dump({"nodes": nodes}))
    done = dora_run("dataflow.yml", tmp_path)
    assert done.returncode == 0, done.stdout
    whole = re.findall(r"sink: sentence (\d+) is whole: (.*)$", done.stdout, re.MULTILINE)
    assert dict(whole) == sentences
    assert len(whole) == len(sentences)
    assert "not whole" not in done.stdout
