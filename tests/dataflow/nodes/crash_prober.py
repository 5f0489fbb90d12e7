"""Raw dora: makes a node crash, waits for the error, then asks again until there is an answer."""

import json
import os
from pathlib import Path

import pyarrow as pa
from dora import Node

node = Node()
ends = {}
node.send_output("text", pa.array(["crash"]), {"segment_id": "1", "fin": "true"})
segment = 1
while not any(error is None for error in ends.values()):
    event = node.next(timeout=0.5)
    if event is None:
        break
    if event["type"] == "INPUT" and event["metadata"].get("fin") == "true":
        ends[event["metadata"]["segment_id"]] = event["metadata"].get("error")
    elif event["type"] == "ERROR" and "1" in ends:
        # What is sent while a node is being restarted is lost.
        segment += 1
        node.send_output("text", pa.array(["hello"]), {"segment_id": str(segment), "fin": "true"})
Path(os.environ["RESULT"]).write_text(json.dumps(ends))
