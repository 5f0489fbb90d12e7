"""Gives 小莫 a goal, hears of each step, and waits for the result."""

import pyarrow as pa
from dora import Node

node = Node()
node.send_output("goal", pa.array([4]), {"goal_id": "1"})
print("小莫，走四步！", flush=True)
for event in node:
    if event["type"] != "INPUT":
        continue
    number = event["value"][0].as_py()
    if event["id"] == "feedback":
        print(f"第 {number} 步", flush=True)
    if event["id"] == "result":
        status = event["metadata"]["goal_status"]
        print(f"结果：{status}，走了 {number} 步", flush=True)
        break
