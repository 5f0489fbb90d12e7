"""小莫 says some sentences, one character at each tick of the timer."""

import pyarrow as pa
from dora import Node

SENTENCES = ["你好！", "我是小莫，很高兴认识你。", "再见！"]

node = Node()
for number, sentence in enumerate(SENTENCES, start=1):
    for seq, character in enumerate(sentence):
        is_last = seq == len(sentence) - 1
        metadata = {"session_id": str(number), "seq": str(seq), "fin": "true" if is_last else "false"}
        node.next()
        node.send_output("text", pa.array([character]), metadata)
