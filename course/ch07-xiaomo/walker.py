"""小莫's legs and its battery: the walker of chapter 5, which also tells how full the battery is."""

import time

import pyarrow as pa
from dora import Node

node = Node()
waiting = []  # goals that came, and aren't begun yet
canceled = set()  # the ids of goals that are to be canceled
level = 100


def take(event):
    if event["type"] != "INPUT":
        return
    if event["id"] == "goal":
        waiting.append(event)
    if event["id"] == "cancel":
        canceled.add(event["metadata"]["goal_id"])


def look():
    """Takes what came meanwhile, and doesn't wait for more."""
    while event := node.try_recv():
        take(event)


node.send_output("battery", pa.array([level]))
for event in node:
    take(event)
    while waiting:
        goal = waiting.pop(0)
        goal_id, steps = goal["metadata"]["goal_id"], goal["value"][0].as_py()
        walked, status = 0, "succeeded"
        while walked < steps:
            look()
            if goal_id in canceled:
                status = "canceled"
                break
            walked += 1
            level -= 10
            node.send_output("feedback", pa.array([walked]), {"goal_id": goal_id})
            node.send_output("battery", pa.array([level]))
            time.sleep(1.2)  # so long takes a step
        node.send_output("result", pa.array([walked]), {"goal_id": goal_id, "goal_status": status})
