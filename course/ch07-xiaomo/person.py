"""The human: hears 小莫 character by character, and says something when it has heard enough."""

import pyarrow as pa
from dora import Node

REPLIES = {  # what has been heard of a sentence, and what the human says then
    "你好，": "停！",
    "好的。": "去厨房！",
    "第2步。": "停！",
    "我停下来了，走了2步。": "还有多少电？",
    "我到厨房了，走了4步。": "还有多少电？",
    "还有80%的电。": "再见！",
    "还有60%的电。": "再见！",
}

node = Node()


def say(words):
    print(f"I say: {words}", flush=True)
    node.send_output("words", pa.array([words]))


say("你是谁？")
parts = {}  # of each sentence: its characters, by seq
lengths = {}  # of each sentence whose last character is known
for event in node:
    if event["type"] != "INPUT":
        continue
    metadata = event["metadata"]
    if metadata.get("finish") == "true":
        break  # the voice will say nothing more
    segment_id, seq = metadata["segment_id"], int(metadata["seq"])
    parts.setdefault(segment_id, {})[seq] = event["value"][0].as_py()
    if metadata["fin"] == "true":
        lengths[segment_id] = seq + 1
    is_whole = len(parts[segment_id]) == lengths.get(segment_id)
    heard = "".join(parts[segment_id][seq] for seq in sorted(parts[segment_id]))
    if is_whole or heard in REPLIES:
        print(f"I hear: {heard}{'' if is_whole else ' …'}", flush=True)
    if heard in REPLIES:
        say(REPLIES[heard])
    if heard == "再见！":
        break
