"""Raw dora: starts a segment, interrupts it as soon as two fragments came, and so on, 100 times."""

import json
import os
from pathlib import Path

import pyarrow as pa
from dora import Node

node = Node()
verb = os.environ["VERB"]
segment, stale, answered, fragments = 1, 0, set(), 0


def ask():
    node.send_output("text", pa.array(["go on"]), {"segment_id": str(segment), "fin": "true"})


ask()
while (event := node.next()) is not None:
    if event["type"] != "INPUT":
        continue
    came = int(event["metadata"]["segment_id"])
    # Once the new segment has answered, nothing older may come.
    stale += came != segment and segment in answered
    if came != segment:
        continue
    fragments = 1 if came not in answered else fragments + 1
    answered.add(came)
    if fragments < 2:
        continue
    if segment > 100:
        break
    dead, segment = segment, segment + 1
    named = segment if verb == "flush" else dead
    header = {"segment_id": str(named), **({"flush": "true"} if verb == "flush" else {})}
    node.send_output("control", pa.array([verb]), header)
    ask()
with Path(os.environ["RESULT"]).open("w") as result:
    json.dump({"answered": sorted(answered), "stale": stale}, result)
