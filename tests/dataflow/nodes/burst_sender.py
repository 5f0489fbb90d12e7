"""Raw dora: 2,000 fragments of five interleaved sessions in one burst, shuffled within each session."""

import os
import random

import pyarrow as pa
from dora import Node

node = Node()
rng = random.Random(int(os.environ["SEED"]))
flushed = os.environ.get("FLUSHED_SESSION")
queues = {}
for n in range(5):
    seqs = list(range(400))
    rng.shuffle(seqs)
    queues[f"session {n}/ü"] = seqs
sent = 0
while any(queues.values()):
    session = rng.choice([s for s, seqs in queues.items() if seqs])
    seq = queues[session].pop()
    header = {"session_id": session, "segment_id": "1", "seq": str(seq), "fin": "true" if seq == 399 else "false"}
    node.send_output("text", pa.array([f"{seq},"]), header)
    sent += 1
    if sent == 1000 and flushed:
        header = {"session_id": flushed, "segment_id": "2", "flush": "true"}
        node.send_output("control", pa.array(["flush"]), header)
for session in {f"session {n}/ü" for n in range(5)}:
    node.send_output("text", pa.array([""]), {"session_id": session, "finish": "true"})
