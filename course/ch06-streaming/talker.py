"""Sends the words of two stories; as soon as the first is being said, interrupts the story for Ann."""

import pyarrow as pa
from dora import Node

STORIES = {"Ann": ["从前", "有一只", "小猫"], "Bob": ["很久", "很久", "以前"]}

node = Node()
for words in zip(*STORIES.values(), strict=True):
    for session_id, word in zip(STORIES, words, strict=True):
        node.send_output("text", pa.array([word]), {"session_id": session_id})
node.next()
node.send_output("text", pa.array(["（停）"]), {"session_id": "Ann", "flush": "true"})
