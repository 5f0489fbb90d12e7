"""小莫's legs, with a battery: each step costs some of it, and a goal for which it doesn't last is aborted."""

import time

import pyarrow as pa
from dora import Node

COST = 30  # of a full battery's 100 %, for one step

node = Node()
waiting = []  # goals that came, and aren't begun yet
canceled = set()  # the ids of goals that are to be canceled


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


def walk(goal_id, steps):
    """Returns how many steps it walked, and how that ended."""
    level = 100  # each goal begins with a full battery
    for step in range(1, steps + 1):
        look()
        if goal_id in canceled:
            return step - 1, "canceled"
        if level < COST:
            return step - 1, "aborted"
        level -= COST
        node.send_output("feedback", pa.array([step]), {"goal_id": goal_id})
        time.sleep(1)  # so long takes a step
    return steps, "succeeded"


for event in node:
    take(event)
    while waiting:
        goal = waiting.pop(0)
        goal_id = goal["metadata"]["goal_id"]
        walked, status = walk(goal_id, goal["value"][0].as_py())
        node.send_output("result", pa.array([walked]), {"goal_id": goal_id, "goal_status": status})
