"""The light on 小莫's chest: shows how full the battery is."""

from dora import Node

node = Node()
for event in node:
    if event["type"] == "INPUT":
        level = event["value"][0].as_py()
        print("■" * (level // 10) + "□" * (10 - level // 10), f"{level}%", flush=True)
