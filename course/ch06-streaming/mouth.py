"""Says words, one second each, and tells when it begins one."""

import time

from dora import Node

node = Node()
for event in node:
    if event["type"] == "INPUT":
        word, session_id = event["value"][0].as_py(), event["metadata"]["session_id"]
        node.send_output("begun", event["value"])
        print(f"to {session_id}: {word}", end="", flush=True)
        time.sleep(1)
        print(" … said", flush=True)
