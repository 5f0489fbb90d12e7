"""Whole nodes, given everything that DESIGN §2 calls unreadable, and then something good."""

import logging
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pyarrow as pa
import pytest
import soundfile

from dora_voice.messages import Audio, Control, Played, Text
from dora_voice.testing import FakeNode, closed, event, tone

NODES = ("source", "vad", "stt", "llm", "tts", "speaker", "sink")
BAD_HEADERS = {"seq": "x", "segment_id": "-1", "fin": "maybe", "session_id": "", "text_end": "1.5", "audio_ms": ["1"]}
BAD_VALUES = {
    Audio: [
        pa.array([1, 2]),
        pa.array(["sound"]),
        pa.array([0.0, float("nan")], pa.float32()),
        pa.array([float("inf")], pa.float32()),
        pa.array([0.0, None], pa.float32()),
    ],
    Text: [pa.array([1.0]), pa.array(["a", "b"]), pa.array([], pa.string()), pa.array([None], pa.string())],
    Control: [pa.array(["explode"]), pa.array([True]), pa.array([["flush"]])],
    Played: [pa.array([-1]), pa.array([1.5]), pa.array([1, 2])],
}
GOOD_VALUES = {
    Audio: pa.array(tone(20)),
    Text: pa.array(["hello."]),
    Control: pa.array(["start"]),
    Played: pa.array([0]),
}


def bad_events(ports):
    for port, kind in ports.inputs.items():
        for key, value in BAD_HEADERS.items():
            if key in kind.__dataclass_fields__:
                yield port, event(port, GOOD_VALUES[kind], **{key: value})
        for value in BAD_VALUES[kind]:
            yield port, event(port, value)
        if kind is Audio:
            for rate in ("0", "1000", "fast", "999999"):
                yield port, event(port, GOOD_VALUES[kind], sample_rate=rate)


def speech():
    path = Path(__file__).parents[1] / "recordings/short-answers.wav"
    return soundfile.read(path, dtype="float32", stop=3 * 16_000)[0]


def good_events():
    """For each node, what it has to answer; and a word about the answer."""
    header = {"session_id": "good", "segment_id": "7", "seq": "0", "fin": "true"}
    return {
        "source": ([], "audio"),
        "vad": ([event("audio", speech(), session_id="good")], "control"),
        "stt": ([event("speech", tone(800), **header)], "text"),
        "llm": ([event("text", "hello.", **header)], "text"),
        "tts": ([event("text", "hello.", **header)], "audio"),
        "speaker": ([event("audio", tone(200, rate_hz=24_000), sample_rate="24000", **header)], "played"),
        "sink": ([event("user_text", "hello.", **header)], None),
    }


@pytest.mark.parametrize("name", NODES)
def test_each_bad_message_costs_one_clear_line_and_the_next_good_one_is_served(
    name, tmp_path, monkeypatch, caplog, capsys
):
    module = import_module(f"dora_voice_{name}.node")
    settings = {"OUT_DIR": str(tmp_path), "PACE": "fast"}
    if name in ("stt", "llm", "tts"):
        settings["BACKEND"] = "fake"
    for key, value in settings.items():
        monkeypatch.setenv(key, value)
    events, answered_on = good_events()[name]
    wired = {port: f"other/{port}" for port in module.PORTS.inputs}
    node = FakeNode(inputs=wired, outputs=module.PORTS.outputs)
    bad = list(bad_events(module.PORTS))
    for _, one in bad:
        node.feed(one)
    node.feed(*events, *(closed(port) for port in wired))
    node.end()
    with caplog.at_level(logging.INFO, "dora_voice"):
        module.main(node)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    refused = [line for line in lines if line.startswith("dropped a message")]
    # A source ends when its recording does, which may be before it has read all that was sent to it.
    assert len(refused) == len(bad) or (name == "source" and refused)
    assert all(f"input {port!r}" in line and "expected" in line for (port, _), line in zip(bad, refused, strict=False))
    assert [record for record in caplog.records if record.exc_info] == []
    answers = [sent for sent in node.sent if sent.metadata.get("session_id") == ("good" if events else "default")]
    if answered_on:
        assert [sent for sent in answers if sent.output == answered_on]
    if name == "sink":
        assert "hello." in capsys.readouterr().out
        assert "hello." in (tmp_path / "conversation.jsonl").read_text()


@pytest.mark.parametrize("name", ["stt", "llm", "tts"])
def test_a_model_that_breaks_ends_its_segment_with_an_error_and_serves_the_next(name, monkeypatch):
    module = import_module(f"dora_voice_{name}.node")
    monkeypatch.setenv("BACKEND", "fake")
    stage = module.build(module.Config(backend="fake"))
    model, method = {
        "stt": ("_recognizer", "transcribe"),
        "llm": ("_service.model", "extend"),
        "tts": ("_voice", "speak"),
    }[name]
    owner = attrgetter(model)(stage)
    works = getattr(owner, method)
    calls = []

    def breaks_once(*args):
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("out of memory")
        return works(*args)

    monkeypatch.setattr(owner, method, breaks_once)
    port = "speech" if name == "stt" else "text"
    value = tone(500) if name == "stt" else "hello."
    wired = {one: f"other/{one}" for one in module.PORTS.inputs if one != "played"}
    events = [event(port, value, segment_id=str(n), seq="0", fin="true") for n in (1, 2)]
    node = FakeNode([*events, *(closed(one) for one in wired)], inputs=wired, outputs=module.PORTS.outputs)
    node.end()
    from dora_voice.runtime import run

    run(stage, module.PORTS, node)
    ends = [sent.metadata for sent in node.sent if sent.output == module.PORTS.reply and sent.metadata["fin"] == "true"]
    assert [(end["segment_id"], end.get("error")) for end in ends] == [
        ("1", "RuntimeError: out of memory"),
        ("2", None),
    ]
