"""小莫's mind: decides what has to be done about everything that comes in, and never waits itself."""

from itertools import count

import pyarrow as pa
from dora import Node

SESSION = "Ann"

node = Node()
segment_ids, goal_ids = count(1), count(1)
request_id = None  # of the question whose answer is waited for
goal_id = None  # of the task that is being done
level = None  # of the battery


def say(sentence):
    metadata = {"session_id": SESSION, "segment_id": str(next(segment_ids)), "seq": "0", "fin": "true"}
    node.send_output("text", pa.array([sentence]), metadata)


def stop_talking():
    """Every sentence of this session that is older than this number ends."""
    metadata = {"session_id": SESSION, "segment_id": str(next(segment_ids)), "flush": "true"}
    node.send_output("control", pa.array(["flush"]), metadata)


for event in node:
    if event["type"] == "INPUT_CLOSED" and event["id"] == "words":
        break  # the human has gone
    if event["type"] != "INPUT":
        continue
    metadata = event["metadata"]
    match event["id"], event["value"][0].as_py():
        case "words", "你是谁？":
            say("你好，我是小莫。")
            say("我会说话，也会走路。")
        case "words", "还有多少电？":
            say(f"还有{level}%的电。")
        case "words", "去厨房！":
            request_id = node.send_service_request("question", pa.array(["厨房"]))
        case "words", "停！":
            stop_talking()
            request_id = None
            if goal_id:
                node.send_output("cancel", pa.array(["cancel"]), {"goal_id": goal_id})
            else:
                say("好的。")
        case "words", "再见！":
            say("再见！")
        case "battery", percent:
            level = percent
        case "answer", steps if metadata["request_id"] == request_id:
            goal_id = str(next(goal_ids))
            node.send_output("goal", pa.array([steps]), {"goal_id": goal_id})
        case "feedback", step:
            say(f"第{step}步。")
        case "result", steps:
            goal_id = None
            is_there = metadata["goal_status"] == "succeeded"
            say(f"{'我到厨房了' if is_there else '我停下来了'}，走了{steps}步。")
