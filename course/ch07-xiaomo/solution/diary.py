"""小莫's diary: for each task, how many steps were wanted, how many were walked, and how it ended."""

from dora import Node

node = Node()
wanted = {}  # of each task: its steps
for event in node:
    if event["type"] != "INPUT":
        continue
    goal_id, steps = event["metadata"]["goal_id"], event["value"][0].as_py()
    if event["id"] == "goal":
        wanted[goal_id] = steps
    else:
        status = event["metadata"]["goal_status"]
        print(f"goal {goal_id}: {steps} of {wanted[goal_id]} steps, {status}", flush=True)
