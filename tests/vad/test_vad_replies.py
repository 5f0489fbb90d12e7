"""What is known of the replies, so that their echo can be told."""

from __future__ import annotations

from dora_voice.messages import Played, Text
from dora_voice_vad.replies import Replies


def add(replies: Replies, segment_id: int, text: str) -> None:
    replies.add(Text(port="reply", text=text, session_id="a", segment_id=segment_id))


def play(replies: Replies, segment_id: int) -> None:
    replies.played(Played(port="played", samples=240, text_end=1, session_id="a", segment_id=segment_id))


def test_what_is_heard_counts_while_it_is_held() -> None:
    replies = Replies()
    add(replies, 1, "One.")
    play(replies, 1)
    assert replies.just_said((1, 2)) == "One."
    assert replies.just_said((2,)) == ""


def test_texts_before_the_one_that_is_heard_are_forgotten() -> None:
    replies = Replies()
    for segment_id in (1, 2, 3):
        add(replies, segment_id, f"{segment_id}.")
    play(replies, 2)
    play(replies, 1)
    assert replies.just_said((1, 2)) == ""
    play(replies, 3)
    assert replies.just_said((3,)) == "3."
