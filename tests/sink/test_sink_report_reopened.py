"""A turn that is reopened, from the messages by way of the sink's own journal to the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from dora_voice.messages import Audio, Control, Message, Played, Segment, Text
from dora_voice.testing import Driver, tone
from dora_voice_sink.files import Journal, ReplyFiles, reply_path
from dora_voice_sink.node import PORTS
from dora_voice_sink.report import main
from dora_voice_sink.stage import SinkStage

SESSION = "a b/ü"


def control(verb: str, segment_id: int, continues: int | None = None) -> Control:
    return Control(port="control", verb=verb, session_id=SESSION, segment_id=segment_id, continues=continues)


def text(port: str, said: str, segment_id: int) -> Text:
    return Text(port=port, text=said, session_id=SESSION, segment_id=segment_id, seq=0, fin=True)


def reply(segment_id: int) -> list[Message]:
    sound, ids = tone(500, rate_hz=24_000), {"session_id": SESSION, "segment_id": segment_id}
    return [
        text("reply_text", "Yes.", segment_id),
        Audio(port="reply_audio", samples=sound, sample_rate=24_000, seq=0, fin=True, **ids),
        Played(port="played", samples=len(sound), text_end=4, seq=0, fin=True, **ids),
    ]


@pytest.fixture
def page(tmp_path: Path) -> str:
    """Of "I would", committed after 2 s, which goes on after 3 s: "I would like tea.\""""
    driver = Driver(SinkStage(Journal(tmp_path), ReplyFiles(tmp_path)), PORTS)
    for messages in (
        [],
        [control("start", 1)],
        [text("user_text", "I would", 1), control("commit", 1)],
        [control("drop", 1), control("start", 2, continues=1)],
        [text("user_text", "I would like tea.", 2), control("commit", 2)],
        reply(2),
    ):
        driver.feed(*messages)
        driver.advance(1000)
    driver.scheduler.close()
    assert main([str(tmp_path)]) == 0
    assert reply_path(tmp_path, Segment(SESSION, 2)).is_file()
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_page_says_what_goes_on_and_what_was_taken_back(page: str) -> None:
    assert page.count("continues 1<") == 1
    assert page.count(">dropped<") == 1
    assert "I would like tea." in page


def test_it_says_when_a_reopened_turn_was_committed_and_when_it_was_dropped(page: str) -> None:
    assert "segment 1, from 0:01, committed at 0:02, dropped at 0:03<" in page
    assert "segment 2, from 0:03, committed at 0:04<" in page


def test_it_finds_the_replies_sound(page: str) -> None:
    assert ">synthesised<" in page
    assert "No such file" not in page
