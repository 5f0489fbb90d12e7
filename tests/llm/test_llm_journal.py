"""The history on disk: all of it comes back after a crash, whatever line it tears."""

from __future__ import annotations

import fcntl
import json
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dora_voice_llm import journal as journal_module
from dora_voice_llm import past
from dora_voice_llm.journal import PREFIX, Journal
from dora_voice_llm.past import Past, Unheard
from dora_voice_llm.replies import Reply
from dora_voice_session.schema import ChatMessage, Generation, SessionSettings
from dora_voice_session.turns import Turn, Turns


def begun(folder, run="run", present=dict):
    journal = Journal(folder, run, present)
    journal.begin(is_restart=False)
    journal.begin_anew()
    return journal


def left(folder, run="run"):
    """What a process that is restarted finds."""
    return Journal(folder, run, dict).begin(is_restart=True)


def reply(turn_id, text="", heard_end=0, *, segment_id=None, is_spoken=True):
    return Reply(turn_id if segment_id is None else segment_id, turn_id, is_spoken, text, heard_end)


def contents(known):
    return [message["content"] for message in known.turns.messages()]


def test_what_was_said_and_heard_comes_back(tmp_path):
    journal = begun(tmp_path)
    journal.add("a", past.said(1, "Count."))
    journal.add("a", past.replied(reply(1), 0, "One two"))
    journal.add("a", past.replied(reply(1), 7, " three"))
    journal.add("a", past.heard(1, 7))
    journal.add("a", past.said(2, "Go on."))
    journal.add("a", past.replied(reply(2, segment_id=3), 0, "Four five"))
    journal.add("a", past.playing(reply(2, "Four five", 4, segment_id=3)))
    (known,) = left(tmp_path).values()
    assert contents(known) == ["Count.", "One two", "Go on.", "Four five"]
    assert known.unheard == {2: Unheard(turn_id=2, segment_id=3, text_end=4)}


def test_what_nobody_reports_about_was_heard_as_far_as_it_was_sent(tmp_path):
    journal = begun(tmp_path)
    journal.add("a", past.said(1, "Count."))
    journal.add("a", past.replied(reply(1, "One two", is_spoken=False), 0, "One two"))
    assert left(tmp_path)["a"].unheard == {1: Unheard(1, 1, 7)}


def test_what_is_told_twice_of_a_reply_counts_once(tmp_path):
    journal = begun(tmp_path)
    journal.add("a", past.said(1, "Count."))
    for start, text in ((0, "One two"), (3, " two"), (7, " three")):
        journal.add("a", past.replied(reply(1), start, text))
    assert left(tmp_path)["a"].turns.find(1).reply == "One two three"


def test_a_dropped_turn_and_an_ended_session_leave_nothing(tmp_path):
    journal = begun(tmp_path)
    journal.add("a", past.said(1, "Hm."))
    journal.add("b", past.said(1, "Hello."))
    journal.add("a", past.dropped(1))
    journal.add("b", past.ended())
    known = left(tmp_path)
    assert contents(known["a"]) == []
    assert "b" not in known


def test_a_whole_session_can_be_told_in_one_line(tmp_path):
    journal = begun(tmp_path)
    journal.add("a", past.said(1, "Old."))
    config = SessionSettings(system_prompt="Be kind.", generation=Generation(max_new_tokens=7))
    turns = Turns([Turn(3, [ChatMessage(role="user", content="New.")], "Yes.")])
    journal.add("a", Past(config, turns, {3: Unheard(3, 4, 2)}).whole())
    known = left(tmp_path)["a"]
    assert contents(known) == ["New.", "Yes."]
    assert (known.settings, known.unheard) == (config, {3: Unheard(3, 4, 2)})


@pytest.mark.parametrize("text", ["one\u2028two\x85three\r\nfour", "nul \0", "half \ud83d of a pair", "👩‍🚀 中文"])
def test_what_is_odd_in_what_was_said_tears_nothing(tmp_path, text):
    begun(tmp_path).add("a", past.replied(reply(1), 0, text))
    journal = begun(tmp_path)
    journal.add("a", past.said(1, "Go."))
    journal.add("a", past.replied(reply(1), 0, text))
    assert left(tmp_path)["a"].turns.find(1).reply == text


def test_another_run_begins_with_nothing(tmp_path):
    begun(tmp_path).add("a", past.said(1, "Secret."))
    assert left(tmp_path, "other") == {}
    assert Journal(tmp_path, "run", dict).begin(is_restart=False) == {}, "without a restart it is another run, too"


def test_without_the_name_of_a_run_nothing_is_written(tmp_path):
    journal = begun(tmp_path / "state", run="")
    journal.add("a", past.said(1, "Secret."))
    journal.close()
    assert not (tmp_path / "state").exists()


def test_a_run_that_ended_leaves_no_file(tmp_path):
    journal = begun(tmp_path)
    journal.add("a", past.said(1, "Hello."))
    assert any(tmp_path.iterdir())
    journal.close()
    assert not any(tmp_path.iterdir())


def test_nobody_else_may_read_it(tmp_path):
    begun(tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0


def aged(file, hours):
    file.write_text("")
    os.utime(file, 2 * (time.time() - hours * 3600,))


def test_journals_of_runs_that_were_killed_long_ago_are_removed_and_nothing_else(tmp_path):
    for name in ("old.jsonl", "old.new"):
        aged(tmp_path / f"{PREFIX}{name}", 25)
    aged(tmp_path / f"{PREFIX}young.jsonl", 1)
    aged(tmp_path / "conversation.jsonl", 25)
    (tmp_path / f"{PREFIX}folder.jsonl").mkdir()
    os.utime(tmp_path / f"{PREFIX}folder.jsonl", (0, 0))
    begun(tmp_path)
    names = {file.name for file in tmp_path.iterdir()}
    kept = {f"{PREFIX}run.jsonl", f"{PREFIX}young.jsonl", f"{PREFIX}folder.jsonl"}
    assert names == kept | {"conversation.jsonl"}


def test_the_journal_of_a_run_that_lives_is_never_removed(tmp_path):
    begun(tmp_path, "quiet").add("a", past.said(1, "Hello."))
    quiet = tmp_path / f"{PREFIX}quiet.jsonl"
    os.utime(quiet, 2 * (time.time() - 25 * 3600,))
    with quiet.open() as lives:
        fcntl.flock(lives, fcntl.LOCK_SH)
        begun(tmp_path)
        assert quiet.exists()
    assert contents(left(tmp_path, "quiet")["a"]) == ["Hello."]


def test_a_full_disk_is_said_once_and_nothing_that_is_out_of_date_stays(tmp_path, caplog, monkeypatch):
    journal = begun(tmp_path)
    journal.add("a", past.said(1, "Hello."))
    monkeypatch.setattr(journal._file, "flush", lambda: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    for _ in range(3):
        journal.add("a", past.said(2, "Hello."))
    assert caplog.text.count("No space left on device: from here on a crash forgets the conversation") == 1
    assert left(tmp_path) == {}
    journal.close()


def test_a_folder_that_cannot_be_made_is_said_and_nothing_is_written(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    journal = begun(tmp_path / "file")
    journal.add("a", past.said(1, "Hello."))
    journal.close()
    assert caplog.text.count("from here on a crash forgets the conversation") == 1


def test_a_long_run_does_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "LARGEST_BYTES", 2000)
    now = Past(turns=Turns([Turn(7, [ChatMessage(role="user", content="Still here.")])]))
    journal = begun(tmp_path, present=lambda: {"a": now})
    for i in range(200):
        journal.add("a", past.said(i, "x" * 20))
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 2500
    assert contents(left(tmp_path)["a"])[0].startswith("Still here.")


def test_one_that_is_large_by_what_it_has_to_tell_is_not_written_anew_for_every_line(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "LARGEST_BYTES", 1000)
    told = []
    long = Past(turns=Turns([Turn(1, [ChatMessage(role="user", content="x" * 5000)])]))
    journal = begun(tmp_path, present=lambda: told.append(1) or {"a": long})
    for i in range(50):
        journal.add("a", past.said(i, "hello"))
    assert len(told) == 1


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "7",
        "null",
        "[" * 100_000,
        '{"session": "a"}',
        '{"session": "a", "what": "sung", "turn": 1}',
        '{"session": "a", "what": "said", "turn": "x", "text": "Hi."}',
        '{"session": "a", "what": "said", "turn": 1, "text": 5}',
        '{"session": "a", "what": "whole", "settings": {"x": 1}, "turns": [], "unheard": []}',
        '{"session": "a", "what": "whole", "settings": null, "turns": [], "unheard": {"1": 2}}',
        '{"session": [], "what": "said", "turn": 1, "text": "Hi."}',
    ],
)
def test_a_line_that_is_no_entry_is_said_and_left_out(tmp_path, caplog, line):
    journal = begun(tmp_path)
    journal.add("a", past.said(1, "Before."))
    (file,) = tmp_path.iterdir()
    file.write_text(f"{file.read_text()}{line}\n" + json.dumps({"session": "a", **past.said(2, "After.")}) + "\n")
    assert contents(left(tmp_path)["a"]) == ["Before. After."]
    assert caplog.text.count("a line can't be read") == 1


def oracle(entries):
    """The same by the plainest means: what one would read out of the lines."""
    turns = {}
    for what, turn_id, *more in entries:
        if what == "said":
            turns.setdefault(turn_id, [more[0], None])
        elif what == "replied" and turn_id in turns:
            turns[turn_id][1] = (turns[turn_id][1] or "") + more[0]
        elif what == "dropped":
            turns.pop(turn_id, None)
    return {turn_id: turns[turn_id] for turn_id in sorted(turns)}


ENTRIES = st.lists(
    st.one_of(
        st.tuples(st.just("said"), st.integers(1, 4), st.text(min_size=1, max_size=5)),
        st.tuples(st.just("replied"), st.integers(1, 4), st.text(max_size=5)),
        st.tuples(st.just("dropped"), st.integers(1, 4)),
    ),
    max_size=12,
)


@settings(max_examples=100)
@given(ENTRIES, st.integers(0, 400))
def test_whatever_line_is_torn_the_lines_before_it_come_back(tmp_path_factory, entries, torn_bytes):
    folder = tmp_path_factory.mktemp("state")
    journal = begun(folder)
    for i, (what, turn_id, *more) in enumerate(entries):
        _, so_far = oracle(entries[:i]).get(turn_id, ["", None])
        start = len(so_far or "")
        made = past.replied(reply(turn_id), start, *more) if what == "replied" else getattr(past, what)(turn_id, *more)
        journal.add("a", made)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    torn = whole[: max(0, len(whole) - torn_bytes)]
    file.write_bytes(torn)
    # Only a last line of which nothing but the line feed is missing still counts.
    lines = torn.count(b"\n") + torn.endswith(b"}")
    known = left(folder).get("a", Past())
    assert [[turn.messages[0].text, turn.reply] for turn in known.turns] == [*oracle(entries[:lines]).values()]
