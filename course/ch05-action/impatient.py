"""Gives 小莫 a goal, and cancels it after the second step."""

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
        if number == 2:
            print("停！", flush=True)
            node.send_output("cancel", pa.array(["cancel"]), {"goal_id": "1"})
    if event["id"] == "result":
        status = event["metadata"]["goal_status"]
        print(f"结果：{status}，走了 {number} 步", flush=True)
        if status == "canceled":
            print("谢谢你停下来。", flush=True)
        break
