"""小莫 asks two questions, and doesn't wait for ever: at the fifth tick it gives up."""

import pyarrow as pa
from dora import Node

QUESTIONS = ["月亮有多远？", "小莫几岁？"]

node = Node()
asked = {}  # the questions that wait for their answers, by request_id
ticks = 0
for question in QUESTIONS:
    request_id = node.send_service_request("question", pa.array([question]))
    asked[request_id] = question
    print(f"我问：{question}", flush=True)
for event in node:
    if event["type"] != "INPUT":
        continue
    if event["id"] == "tick":
        ticks += 1
        if ticks == 5:
            break
    if event["id"] == "answer":
        answer = event["value"][0].as_py()
        question = asked.pop(event["metadata"]["request_id"])
        print(f"{question}{answer}", flush=True)
        if not asked:
            break
for question in asked.values():
    print(f"{question}没有人回答，我不等了。", flush=True)
