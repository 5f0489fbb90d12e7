"""The whole node, from its settings to its last message, on a node without a daemon."""

from __future__ import annotations

import numpy as np
import pytest

from dora_voice.testing import FakeNode, Sent, event, tone
from dora_voice_stt.node import main


def texts(sent: list[Sent]) -> list[tuple[str, dict[str, str]]]:
    return [(message.value[0].as_py(), message.metadata) for message in sent if message.output == "text"]


def serve(*events: dict[str, object]) -> list[tuple[str, dict[str, str]]]:
    node = FakeNode(events)
    node.end()
    main(node)
    return texts(node.sent)


@pytest.fixture(autouse=True)
def fake_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKEND", "fake")
    monkeypatch.setenv("FAKE_TEXTS", "what is this")


def test_speech_becomes_text_with_the_ids_it_came_with() -> None:
    ids = {"session_id": "a", "segment_id": "3", "sample_rate": "16000"}
    (text, metadata), (_, last) = serve(
        event("speech", tone(100), seq="0", **ids), event("speech", tone(100), seq="1", fin="true", **ids)
    )
    assert text == "what is this"
    expected = {"session_id": "a", "segment_id": "3", "seq": "0", "fin": "true", "language": "en"}
    assert metadata.items() >= expected.items()
    assert last["finish"] == "true"


def test_speech_from_a_node_that_knows_no_contract_is_served() -> None:
    (text, _), *_ = serve(event("speech", tone(100)), event("speech", tone(100), fin=True))
    assert text == "what is this"


def test_what_can_not_be_read_is_dropped_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    (text, _), *_ = serve(
        event("speech", np.full(10, np.nan, np.float32)),
        event("speech", "no sound"),
        event("speech", tone(10), seq="x"),
        event("control", "explode"),
        event("speech", tone(100), fin="true"),
    )
    assert text == "what is this"
    assert len([record for record in caplog.records if "dropped a message" in record.message]) == 4


def test_a_wrong_setting_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MODEL", "tiny")
    with pytest.raises(SystemExit) as exit_:
        serve()
    assert exit_.value.code == 2
    assert "MODEL has no effect with BACKEND=fake" in caplog.text
