"""Counts the characters of each sentence, each of them once."""

from dora import Node

node = Node()
seqs = {}  # those that came, of each sentence
lengths = {}  # of each sentence whose last character is known
for event in node:
    if event["type"] != "INPUT":
        continue
    metadata = event["metadata"]
    session_id, seq = metadata["session_id"], int(metadata["seq"])
    is_known = seq in seqs.setdefault(session_id, set())
    seqs[session_id].add(seq)
    if metadata["fin"] == "true":
        lengths[session_id] = seq + 1
    if not is_known and len(seqs[session_id]) == lengths.get(session_id):
        print(f"sentence {session_id} has {lengths[session_id]} characters", flush=True)
