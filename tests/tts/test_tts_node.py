"""The whole node, from its settings to its last message, on a node without a daemon."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dora_voice.testing import FakeNode, Sent, event
from dora_voice_tts.node import main


@pytest.fixture(autouse=True)
def fake_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKEND", "fake")


def serve(*events: dict[str, object], inputs: dict[str, str] | None = None) -> list[Sent]:
    node = FakeNode(events, inputs=inputs or {"text": "llm/text", "control": "vad/control"}, outputs=["audio"])
    node.end()
    main(node)
    return node.sent


def test_a_reply_becomes_audio_with_the_ids_it_came_with() -> None:
    ids = {"session_id": "a", "segment_id": "3"}
    first, *_, fin, finish = serve(
        event("text", "Hello", seq="0", **ids), event("text", " there.", seq="1", fin="true", **ids)
    )
    assert (first.value.type, len(first.value)) == (pa.float32(), 480)
    expected = {"session_id": "a", "segment_id": "3", "seq": "0", "sample_rate": "24000", "text_start": "0"}
    assert first.metadata.items() >= expected.items()
    assert (len(fin.value), fin.metadata["fin"], fin.metadata["text_end"]) == (0, "true", "12")
    assert finish.metadata["finish"] == "true"


def test_a_text_from_a_node_that_knows_no_contract_is_a_reply() -> None:
    *_, fin, _ = serve(event("text", "Hello."))
    assert fin.metadata["fin"] == "true"


def test_what_can_not_be_read_is_dropped_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    sent = serve(
        event("text", 5),
        event("text", "Hi.", segment_id="-1"),
        event("control", "explode"),
        event("text", "Hello.", fin="true"),
    )
    assert len(sent) == len("Hello.") * 60 / 20 + 2
    assert len([record for record in caplog.records if "dropped a message" in record.message]) == 3


def test_it_waits_for_the_speaker_and_goes_on_when_that_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AHEAD_MS", "200")
    node = FakeNode(
        [event("text", "Hello there.", session_id="a", segment_id="1", fin="true")],
        inputs={"text": "llm/text", "played": "speaker/played"},
        outputs=["audio"],
    )
    node.feed(event("played", 240 * 24, session_id="a", segment_id="1"))
    node.feed(event("played", 720 * 24, session_id="a", segment_id="1", fin="true"))
    node.end()
    main(node)
    assert sum(len(sent.value) for sent in node.sent) == 720 * 24


def test_a_wrong_setting_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VOICE", "joe.onnx")
    with pytest.raises(SystemExit) as exit_:
        serve()
    assert exit_.value.code == 2
    assert "VOICE has no effect with BACKEND=fake" in caplog.text
