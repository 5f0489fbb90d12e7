"""The node whole, with a node instead of a daemon: settings, what can't be read, a conversation."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from dora_voice.config import ConfigError, from_env
from dora_voice.messages import Played, Text
from dora_voice.testing import FakeNode, event, message_event
from dora_voice_llm.config import Config
from dora_voice_llm.node import main


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setenv("BACKEND", "fake")


def replies(node):
    texts = {}
    for sent in node.sent:
        key = (sent.metadata["session_id"], sent.metadata.get("segment_id"))
        texts[key] = texts.get(key, "") + sent.value[0].as_py()
    return {key: text for key, text in texts.items() if text}


def test_a_conversation_from_bare_strings_to_the_end_of_the_inputs(fake):
    node = FakeNode([event("text", "Hello"), event("text", "Bye")], inputs={"text": "probe/text"}, outputs=["text"])
    node.end()
    main(node)
    assert list(replies(node).values()) == ["You said: Hello.", "You said: Bye."]
    assert all(isinstance(value, str) for sent in node.sent for value in sent.metadata.values())
    assert [sent.metadata["fin"] for sent in node.sent].count("true") == 2
    assert node.sent[-1].metadata["finish"] == "true"


def test_the_second_reply_waits_for_the_speaker(fake):
    played = Played(port="played", samples=24_000, text_end=16, session_id="a", segment_id=1, fin=True)
    turns = [
        Text(port="text", text=t, session_id="a", segment_id=i, seq=0, fin=True) for i, t in ((1, "One"), (2, "Two"))
    ]
    wires = {"text": "stt/text", "control": "vad/control", "played": "speaker/played"}
    node = FakeNode(map(message_event, turns), inputs=wires, outputs=["text"])
    running = threading.Thread(target=main, args=(node,))
    running.start()
    node.wait_for(lambda sent: sent[-1:] != [] and sent[-1].metadata["fin"] == "true")
    node.feed(message_event(played))
    node.wait_for(lambda sent: [s.metadata["fin"] for s in sent].count("true") == 2)
    node.end()
    running.join()
    assert replies(node) == {("a", "1"): "You said: One.", ("a", "2"): "You said: Two."}


@pytest.mark.parametrize(
    ("port", "value", "metadata", "names"),
    [
        ("text", "Hi", {"seq": "x"}, "seq"),
        ("text", "Hi", {"segment_id": "-1"}, "segment_id"),
        ("text", pa.array([1.0]), {}, "text"),
        ("played", "all of it", {}, "played"),
        ("control", "stop-it", {}, "control"),
        ("audio", "Hi", {}, "audio"),
    ],
)
def test_what_cannot_be_read_is_named_and_the_next_message_is_served(fake, caplog, port, value, metadata, names):
    node = FakeNode([event(port, value, **metadata), event("text", "Hello")])
    node.end()
    main(node)
    dropped = [record.getMessage() for record in caplog.records if "dropped a message" in record.getMessage()]
    assert len(dropped) == 1
    assert names in dropped[0]
    assert "You said: Hello." in replies(node).values()


@pytest.mark.parametrize("name", ["MODEL", "SYSTEM_PROMPT"])
def test_a_setting_without_effect_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name} has no effect with BACKEND=fake"):
        from_env(Config, {"BACKEND": "fake", name: "x"})


def test_missing_weights_end_the_node_with_one_line(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("DORA_VOICE_CACHE", str(tmp_path))
    with pytest.raises(SystemExit) as exit_:
        main(FakeNode())
    assert exit_.value.code == 1
    assert "run dora-voice-llm-weights" in caplog.text
