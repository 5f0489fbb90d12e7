"""The runtime under the real daemon: nothing is lost in a burst, nothing stale arrives after an interruption."""

import json
from collections import defaultdict

import pytest
import yaml
from dora_run import NODES, dora_run


def write(tmp_path, *nodes):
    (tmp_path / "dataflow.yml").write_text(yaml.safe_dump({"nodes": list(nodes)}))
    return tmp_path / "dataflow.yml"


def node(name, inputs=(), outputs=(), **env):
    edges = {
        port: {"source": source, "queue_size": 3000, "queue_policy": "backpressure"}
        for port, source in dict(inputs).items()
    }
    path = str(NODES / f"{name}.py")
    return {
        "id": name,
        "path": path,
        "inputs": edges,
        "outputs": list(outputs),
        "env": {k: str(v) for k, v in env.items()},
    }


def turns(out_dir):
    replies = defaultdict(list)
    for line in (out_dir / "conversation.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] in ("turn", "gap", "flush"):
            replies[event["session_id"]].append((event["event"], event.get("text")))
    return replies


@pytest.mark.parametrize("flushed", [None, "session 3/ü"])
def test_a_burst_of_five_shuffled_sessions_to_a_busy_sink_is_put_together_exactly(tmp_path, flushed):
    env = {"FLUSHED_SESSION": flushed} if flushed else {}
    dataflow = write(
        tmp_path,
        node("burst_sender", outputs=["text", "control"], SEED=7, **env),
        node(
            "busy_sink", {"user_text": "burst_sender/text", "control": "burst_sender/control"}, OUT_DIR=tmp_path / "o"
        ),
    )
    run = dora_run(dataflow, tmp_path)
    assert run.returncode == 0, run.stdout
    whole = "".join(f"{n}," for n in range(400))
    expected = {f"session {n}/ü": [("turn", whole)] for n in range(5)}
    if flushed:
        # What the user had said stays said.
        expected[flushed].insert(0, ("flush", None))
    assert turns(tmp_path / "o") == expected


@pytest.mark.parametrize("verb", ["flush", "drop"])
def test_a_working_stage_is_interrupted_a_hundred_times_in_a_row(tmp_path, verb):
    files = {name: tmp_path / name.lower() for name in ("CLOSED", "RESULT", "HEARD")}
    dataflow = write(
        tmp_path,
        node("interrupter", {"text": "slow_stage/text"}, ["text", "control"], VERB=verb, **files),
        node("slow_stage", {"text": "interrupter/text", "control": "interrupter/control"}, ["text"], **files),
        node("listener", {"text": "slow_stage/text", "control": "interrupter/control"}, **files),
    )
    run = dora_run(dataflow, tmp_path)
    assert run.returncode == 0, run.stdout
    result = json.loads(files["RESULT"].read_text())
    assert result == {"answered": list(range(1, 102)), "stale": 0}
    assert [int(line) for line in files["CLOSED"].read_text().split()][:100] == list(range(1, 101))
    dead = set()
    for what, segment in map(json.loads, files["HEARD"].read_text().splitlines()):
        if what == "text":
            assert segment not in dead
        else:
            dead |= set(range(segment)) if what == "flush" else {segment}
    assert len(dead) >= 100


def test_a_killed_node_comes_back_and_what_it_left_open_ends_with_an_error(tmp_path):
    result = tmp_path / "result.json"
    crashing = node("crashing_stage", {"text": "crash_prober/text"}, ["text"])
    crashing |= {"restart_policy": "on-failure", "max_restarts": 3}
    dataflow = write(
        tmp_path,
        node("crash_prober", {"text": "passing_stage/text"}, ["text"], RESULT=result),
        crashing,
        node("passing_stage", {"text": "crashing_stage/text"}, ["text"]),
    )
    run = dora_run(dataflow, tmp_path)
    ends = json.loads(result.read_text())
    assert ends.pop("1") == "restarted: node crashing_stage crashed", run.stdout
    assert list(ends.values()) == [None]
