"""The history on disk: all of it comes back after a crash, whatever line it tears."""

from __future__ import annotations

import json
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dora_voice.messages import Segment
from dora_voice_llm import journal as journal_module
from dora_voice_llm.journal import Journal
from dora_voice_session.schema import ChatMessage, Generation, SessionSettings
from dora_voice_session.turns import Turn, Turns

A1, A2 = Segment("a", 1), Segment("a", 2)


def messages(journal, session_id="a"):
    return [message["content"] for message in journal.past[session_id].turns.messages()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "llm-run.jsonl"


def test_what_was_said_and_heard_comes_back(path):
    journal = Journal(path)
    journal.said(A1, "Count.")
    journal.replied(A1, "One two")
    journal.replied(A1, " three")
    journal.heard(A1, 7)
    journal.said(A2, "Go on.")
    journal.replied(A2, "Four")
    again = Journal(path, is_restart=True)
    assert messages(again) == ["Count.", "One two", "Go on.", "Four"]
    assert again.past["a"].unheard == {2: 0}


def test_line_separators_within_what_was_said_tear_nothing(path):
    said = "one\u2028two\x85three\r\nfour"
    Journal(path).said(A1, said)
    assert messages(Journal(path, is_restart=True)) == [said]


def test_a_dropped_segment_and_an_ended_session_leave_nothing(path):
    journal = Journal(path)
    journal.said(A1, "Hm.")
    journal.said(Segment("b", 1), "Hello.")
    journal.dropped(A1)
    journal.ended("b")
    again = Journal(path, is_restart=True)
    assert messages(again) == []
    assert "b" not in again.past


def test_a_whole_session_can_be_replaced(path):
    journal = Journal(path)
    journal.said(A1, "Old.")
    turns = Turns([Turn(3, [ChatMessage(role="user", content="New.")], "Yes.")])
    config = SessionSettings(system_prompt="Be kind.", generation=Generation(max_new_tokens=7))
    journal.replaced("a", config, turns, {3: 2})
    again = Journal(path, is_restart=True)
    assert messages(again) == ["New.", "Yes."]
    assert again.past["a"].settings == config
    assert again.past["a"].unheard == {3: 2}


def test_another_run_begins_with_nothing(path):
    Journal(path).said(A1, "Secret.")
    assert Journal(path.with_name("llm-other.jsonl"), is_restart=True).past == {}
    assert Journal(path).past == {}, "the same name without a restart is another run, too"


def test_a_run_that_ended_leaves_no_file(path):
    journal = Journal(path)
    journal.said(A1, "Hello.")
    journal.close()
    assert not any(path.parent.iterdir())


def test_nobody_else_may_read_it(path):
    Journal(path).said(A1, "Secret.")
    assert path.stat().st_mode & 0o077 == 0


def test_files_of_runs_that_were_killed_long_ago_are_removed(path):
    path.parent.mkdir()
    for name, age_s in (("llm-old.jsonl", 25 * 3600), ("llm-young.jsonl", 60), ("other.txt", 25 * 3600)):
        (path.parent / name).write_text("")
        os.utime(path.parent / name, 2 * (time.time() - age_s,))
    Journal(path)
    assert sorted(file.name for file in path.parent.iterdir()) == ["llm-run.jsonl", "llm-young.jsonl", "other.txt"]


def test_a_full_disk_is_said_once_and_the_conversation_goes_on(path, caplog, monkeypatch):
    journal = Journal(path)
    monkeypatch.setattr(journal._file, "flush", lambda: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    for _ in range(3):
        journal.said(A1, "Hello.")
    assert caplog.text.count("No space left on device: from here on a crash forgets the conversation") == 1


def test_a_folder_that_cannot_be_made_is_said_and_nothing_is_written(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "llm-run.jsonl")
    journal.said(A1, "Hello.")
    assert "from here on a crash forgets the conversation" in caplog.text


def test_a_long_run_does_not_fill_the_disk(path, monkeypatch):
    monkeypatch.setattr(journal_module, "LARGEST_BYTES", 2000)
    journal = Journal(path)
    for i in range(200):
        journal.said(Segment(f"s{i % 3}", i), "x" * 20)
        journal.ended(f"s{i % 3}")
    journal.said(A1, "Still here.")
    assert path.stat().st_size < 2500
    assert messages(Journal(path, is_restart=True)) == ["Still here."]


ENTRIES = st.lists(
    st.one_of(
        st.tuples(st.just("said"), st.integers(1, 4), st.text(min_size=1, max_size=5)),
        st.tuples(st.just("replied"), st.integers(1, 4), st.text(max_size=5)),
        st.tuples(st.sampled_from(["playing", "heard"]), st.integers(1, 4), st.integers(0, 9)),
        st.tuples(st.just("dropped"), st.integers(1, 4)),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(ENTRIES, st.integers(0, 400))
def test_whatever_line_is_torn_the_lines_before_it_come_back(tmp_path_factory, entries, torn_bytes):
    path = tmp_path_factory.mktemp("state") / "llm-run.jsonl"
    journal, states = Journal(path), [""]
    for what, segment_id, *more in entries:
        getattr(journal, what)(Segment("a", segment_id), *more)
        states.append(_state(journal))
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - torn_bytes)])
    lines_left = whole[: max(0, len(whole) - torn_bytes)].count(b"\n")
    torn_line_is_whole = _is_json(whole[: max(0, len(whole) - torn_bytes)].rsplit(b"\n", 1)[-1])
    again = Journal(path, is_restart=True)
    assert _state(again) == states[lines_left + torn_line_is_whole]
    again.said(Segment("b", 1), "And on.")
    assert messages(Journal(path, is_restart=True), "b") == ["And on."]


def _state(journal):
    past = journal.past.get("a")
    return json.dumps([journal_module._whole(past), []]) if past else ""


def _is_json(line):
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
