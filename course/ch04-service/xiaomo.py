"""小莫 asks the encyclopedia two questions, and tells which answer belongs to which."""

import pyarrow as pa
from dora import Node

QUESTIONS = ["月亮有多远？", "一只猫有几条腿？"]

node = Node()
asked = {}  # the questions that wait for their answers, by request_id
for question in QUESTIONS:
    request_id = node.send_service_request("question", pa.array([question]))
    asked[request_id] = question
    print(f"我问：{question}", flush=True)
for event in node:
    if event["type"] != "INPUT":
        continue
    answer = event["value"][0].as_py()
    question = asked.pop(event["metadata"]["request_id"])
    print(f"{question}{answer}", flush=True)
    if not asked:
        break
for question in asked.values():
    print(f"{question}没有人回答。", flush=True)
