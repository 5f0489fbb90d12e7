"""Which replies are still being heard, and what of them was."""

from __future__ import annotations

import pytest

from dora_voice_llm.replies import Replies, Reply

TEXT = "The sea is wide, and deep."


@pytest.fixture
def past():
    """What became of the replies that are over: segment → where in the text the listener was."""
    return {}


@pytest.fixture
def replies(past):
    return Replies(lambda reply: past.update({reply.segment_id: reply.heard_end}))


def replied(replies, segment_id=1, text=TEXT, *, is_spoken=True):
    reply = Reply(segment_id, segment_id, is_spoken)
    replies.begin(reply)
    reply.text = text
    replies.sent(reply)
    return reply


def test_a_reply_is_past_when_it_was_played_to_its_end(replies, past):
    replied(replies, text=f"{TEXT}\n")
    assert replies.is_playing(2)
    replies.played(1, len(TEXT), 5000, is_last=True)
    assert not replies.is_playing(2)
    assert past == {1: len(TEXT) + 1}, "what makes no sound counts as heard"


def test_a_flushed_reply_is_past_at_its_last_report(replies, past):
    replied(replies)
    replies.played(1, 13, 2000, is_last=False)
    replies.flush(2)
    assert not replies.is_playing(2)
    assert [reply.segment_id for reply in replies.before(2)] == [1]
    replies.played(1, 14, 2100, is_last=True)
    assert past == {1: 14}


def test_the_last_report_may_come_before_the_flush_that_caused_it(replies, past):
    replied(replies)
    replies.played(1, 10, 2100, is_last=True)
    replies.flush(2)
    assert past == {1: 10}


def test_a_flush_cuts_older_replies_only(replies):
    replied(replies, 1)
    replied(replies, 2)
    replies.flush(2)
    assert not replies.is_playing(2)
    assert replies.is_playing(3)


def test_where_nobody_reports_all_that_was_sent_counts_as_heard(replies, past):
    replied(replies, 1, "First.", is_spoken=False)
    cut = Reply(2, 2, is_spoken=False)
    replies.begin(cut)
    cut.text = "Second, and"
    replies.flush(3)
    assert past == {1: 6, 2: 11}


@pytest.mark.parametrize(("samples", "heard_end"), [(0, 0), (1, len(TEXT))])
def test_a_speaker_that_knows_no_text_positions_says_all_or_nothing(replies, past, samples, heard_end):
    replied(replies)
    replies.played(1, None, samples, is_last=True)
    assert past == {1: heard_end}


def test_reports_about_the_past_change_nothing(replies, past):
    reply = replied(replies)
    replies.flush(2)
    replies.settle(reply)
    replies.played(1, 20, 9000, is_last=True)
    replies.settle(reply)
    assert past == {1: 0}


def test_a_position_beyond_what_was_sent_is_its_end_and_none_goes_back(replies, past):
    replied(replies)
    replies.played(1, 10**6, 1, is_last=False)
    replies.played(1, 3, 1, is_last=True)
    assert past == {1: len(TEXT)}


def test_an_empty_reply_is_never_waited_for(replies):
    replied(replies, text=" ")
    assert not replies.before(2)


def test_a_failed_reply_is_over_when_what_was_sent_of_it_has_been_played(replies, past):
    reply = Reply(1, 1, is_spoken=True)
    replies.begin(reply)
    reply.text = "Well,"
    replies.fail(1)
    assert replies.is_playing(2)
    replies.played(1, 5, 100, is_last=True)
    assert past == {1: 5}


def test_all_replies_of_a_segment_that_fails_are_made(replies, past):
    replied(replies)
    second = Reply(1, 2, is_spoken=False)
    replies.begin(second)
    second.text = "Well,"
    replies.fail(1)
    replies.played(1, len(TEXT), 100, is_last=True)
    assert not replies.is_playing(2)


def test_a_speaker_that_is_gone_leaves_what_it_last_told(replies, past):
    replied(replies)
    replies.played(1, 7, 100, is_last=False)
    unsent = Reply(2, 2, is_spoken=True)
    replies.begin(unsent)
    replies.lose(for_good=False)
    assert past == {1: 7}
    assert replies.before(3) == [unsent], "what is still being made may be played by the next speaker"


def test_a_dropped_reply_never_was(replies, past):
    replied(replies)
    replies.drop(1)
    replies.played(1, 7, 100, is_last=True)
    assert past == {}


def test_a_speaker_that_is_gone_for_good_reports_nothing_of_what_is_still_made(replies, past):
    unsent = Reply(1, 1, is_spoken=True)
    replies.begin(unsent)
    unsent.text = "Well, then."
    replies.lose(for_good=True)
    replies.sent(unsent)
    assert past == {1: 11}


def test_a_reply_whose_sound_ended_in_the_middle_is_past_when_it_is_sent_and_was_heard_no_further(replies, past):
    reply = Reply(1, 1, is_spoken=True)
    replies.begin(reply)
    reply.text = "The sea"
    replies.played(1, 3, 100, is_last=True)
    assert past == {}
    reply.text = TEXT
    replies.played(1, 20, 900, is_last=False)
    replies.sent(reply)
    assert past == {1: 3}
