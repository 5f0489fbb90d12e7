"""小莫's battery tells its level at each tick of the timer."""

import pyarrow as pa
from dora import Node

LEVELS = [100, 80, 60, 40, 20]

node = Node()
for level in LEVELS:
    node.next()
    node.send_output("level", pa.array([level]))
