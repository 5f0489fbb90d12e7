"""Tells how much the level has dropped since it was last heard."""

from dora import Node

node = Node()
last_level = None  # a topic has no memory: this node must remember
for event in node:
    if event["type"] == "INPUT":
        level = event["value"][0].as_py()
        if last_level is not None:
            print(f"从 {last_level}% 降到 {level}%，少了 {last_level - level}%", flush=True)
        last_level = level
