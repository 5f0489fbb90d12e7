"""Prints the characters as they come, and each sentence when it is whole."""

from dora import Node

node = Node()
parts = {}  # of each sentence that isn't whole yet: its characters, by seq
lengths = {}  # of each sentence whose last character is known
whole = set()
for event in node:
    if event["type"] != "INPUT":
        continue
    metadata = event["metadata"]
    session_id, seq = metadata["session_id"], int(metadata["seq"])
    character = event["value"][0].as_py()
    print(f"sentence {session_id}, {seq}: {character}", flush=True)
    if session_id in whole:
        continue
    parts.setdefault(session_id, {})[seq] = character
    if metadata["fin"] == "true":
        lengths[session_id] = seq + 1
    if len(parts[session_id]) == lengths.get(session_id):
        sentence = "".join(parts[session_id][seq] for seq in sorted(parts[session_id]))
        print(f"sentence {session_id} is whole: {sentence}", flush=True)
        whole.add(session_id)
        del parts[session_id]
for session_id, those in parts.items():
    print(f"sentence {session_id} is not whole: {len(those)} of {lengths.get(session_id, '?')} characters came")
