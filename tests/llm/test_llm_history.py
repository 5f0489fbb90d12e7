"""The history keeps what the user said, and of each reply what was heard."""

from __future__ import annotations

import pytest

from dora_voice_llm.history import History

REPLY = "The sea is wide, and deep."


def replied(history, segment_id, user, reply):
    turn = history.add(segment_id, user)
    turn.reply = reply
    history.sent(turn)
    return turn


def conversation(history, user="Go on."):
    return [(message["role"], message["content"]) for message in history.messages(history.add(99, user))]


def test_a_reply_played_to_its_end_is_kept_as_it_was_written():
    history = History(knows_heard=True)
    turn = replied(history, 1, "How is the sea?", f"{REPLY}\n")
    assert turn.is_playing
    history.played(1, len(REPLY), 5000, is_last=True)
    assert not turn.is_playing
    assert conversation(history) == [("user", "How is the sea?"), ("assistant", f"{REPLY}\n"), ("user", "Go on.")]


def test_a_flushed_reply_is_cut_to_the_whole_words_that_were_heard():
    history = History(knows_heard=True)
    turn = replied(history, 1, "How is the sea?", REPLY)
    history.played(1, 13, 2000, is_last=False)
    history.flush(2)
    assert not turn.is_playing
    assert not turn.is_past
    history.played(1, 14, 2100, is_last=True)
    assert turn.is_past
    assert conversation(history)[1] == ("assistant", "The sea is")


def test_the_last_report_may_come_before_the_flush_that_caused_it():
    history = History(knows_heard=True)
    replied(history, 1, "How is the sea?", REPLY)
    history.played(1, 10, 2100, is_last=True)
    history.flush(2)
    assert conversation(history)[1] == ("assistant", "The sea is")


def test_a_reply_of_which_nothing_was_heard_is_left_out_and_roles_still_alternate():
    history = History(knows_heard=True)
    replied(history, 1, "How is the sea?", REPLY)
    history.flush(2)
    assert conversation(history, "I mean the lake.") == [("user", "How is the sea? I mean the lake.")]


def test_a_dropped_turn_never_happened():
    history = History(knows_heard=True)
    replied(history, 1, "How is", REPLY)
    history.drop(1)
    assert conversation(history, "How is the sea?") == [("user", "How is the sea?")]


def test_without_reports_all_that_was_sent_counts_as_heard():
    history = History(knows_heard=False)
    replied(history, 1, "One.", "First.")
    turn = history.add(2, "Two.")
    turn.reply = "Second, and"
    history.flush(3)
    assert turn.is_past
    assert [content for role, content in conversation(history) if role == "assistant"] == ["First.", "Second, and"]


@pytest.mark.parametrize(("samples", "heard"), [(0, ""), (1, REPLY)])
def test_a_speaker_that_knows_no_text_positions_says_all_or_nothing(samples, heard):
    history = History(knows_heard=True)
    turn = replied(history, 1, "How is the sea?", REPLY)
    history.played(1, None, samples, is_last=True)
    assert turn.heard == heard


def test_reports_about_the_settled_past_change_nothing():
    history = History(knows_heard=True)
    turn = replied(history, 1, "How is the sea?", REPLY)
    history.flush(2)
    turn.settle()
    history.played(1, 20, 9000, is_last=True)
    assert turn.heard == ""


def test_an_empty_reply_is_never_waited_for():
    assert replied(History(knows_heard=True), 1, "Hm.", " ").is_past


def test_a_failed_reply_is_over_when_what_was_sent_of_it_has_been_played():
    history = History(knows_heard=True)
    turn = history.add(1, "Hm.")
    turn.reply = "Well,"
    history.fail(1)
    assert turn.is_playing
    history.played(1, 5, 100, is_last=True)
    assert (turn.is_playing, turn.heard) == (False, "Well,")


def test_turns_stand_in_the_order_of_their_segments():
    history = History(knows_heard=False)
    replied(history, 2, "Two.", "2")
    replied(history, 1, "One.", "1")
    assert [content for _, content in conversation(history)] == ["One.", "1", "Two.", "2", "Go on."]
