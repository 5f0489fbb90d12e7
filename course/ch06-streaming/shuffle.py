"""A bad road: what comes in goes out in another order, and some of it twice."""

import random

from dora import Node

chance = random.Random(6)
node = Node()
fragments = [(event["value"], event["metadata"]) for event in node if event["type"] == "INPUT"]
fragments += chance.sample(fragments, 5)
chance.shuffle(fragments)
for value, metadata in fragments:
    keys = ("session_id", "seq", "fin")
    node.send_output("text", value, {key: metadata[key] for key in keys})
