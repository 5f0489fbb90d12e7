"""Asks for stories, interrupts Ann's after three characters, and tells at the end what was heard of each."""

import pyarrow as pa
from dora import Node

node = Node()


def ask(session_id, segment_id, text):
    metadata = {"session_id": session_id, "segment_id": segment_id, "seq": "0", "fin": "true"}
    node.send_output("text", pa.array([text]), metadata)


def interrupt(session_id, segment_id):
    """Everything in this session that is older than this segment ends."""
    metadata = {"session_id": session_id, "segment_id": segment_id, "flush": "true"}
    node.send_output("control", pa.array(["flush"]), metadata)


ask("Ann", "1", "从前有一只小猫。")
ask("Ann", "2", "它喜欢吃鱼。")
ask("Bob", "1", "很久很久以前。")
heard = {"Ann 1": "", "Ann 2": "", "Ann 3": "", "Bob 1": ""}
ended = set()
for event in node:
    if event["type"] != "INPUT":
        continue
    metadata = event["metadata"]
    segment = f"{metadata['session_id']} {metadata['segment_id']}"
    heard[segment] += event["value"][0].as_py()
    if segment == "Ann 1" and len(heard[segment]) == 3:
        interrupt("Ann", "3")
        ask("Ann", "3", "好的，我停下来。")
    if metadata["fin"] == "true":
        ended.add(segment)
    if ended >= {"Ann 3", "Bob 1"}:
        break
for segment, text in heard.items():
    print(f"{segment}: {text or '-'}{'' if segment in ended else ' (not to its end)'}")
