"""Shows each level that it hears."""

from dora import Node

node = Node()
for event in node:
    if event["type"] == "INPUT":
        level = event["value"][0].as_py()
        print(f"电量 {level}%", flush=True)
