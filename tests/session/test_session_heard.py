"""A reply is remembered as far as it was heard."""

from __future__ import annotations

import pytest
from session.conversing import CROPS, ask, assert_true_to_its_history, begun, finish, request, said, text_of


@pytest.mark.parametrize(
    ("reply", "text_end", "left"),
    [
        ("The sea is wide.", 0, None),
        ("The sea is wide.", 2, None),
        ("The sea is wide.", 3, "The"),
        ("The sea is wide.", 5, "The"),
        ("The sea is wide.", 16, "The sea is wide."),
        ("The sea is wide.", 99, "The sea is wide."),
        ("Go 🙂🙃 on.", 4, "Go 🙂"),
        ("Go 🙂🙃 on.", 7, "Go 🙂🙃"),
        ("你好。我在。", 3, "你好。"),
        ("你好。我在。", 4, "你好。我"),
        ("It’s the café!", 9, "It’s the"),
        ("  ", 1, None),
    ],
)
@CROPS
def test_a_reply_cut_to_what_was_heard_is_held_like_that_and_closed_by_the_next_turn(reply, text_end, left, can_crop):
    session = begun(reply, "ok", can_crop=can_crop)
    ask(session, "Hi.")
    assert session.heard(text_end)
    assert_true_to_its_history(session)
    if can_crop:
        assert text_of(session) == "<s>u:Hi." + (f"</s><s>a:{left}" if left else "")
    finish(session.prefill(request("Go.")))
    assert text_of(session) == (f"<s>u:Hi.</s><s>a:{left}</s><s>u:Go." if left else "<s>u:Hi. Go.")


def test_what_was_heard_never_grows_again():
    session = begun("The sea is wide.")
    ask(session, "Hi.")
    for text_end in (11, 7, 99):
        session.heard(text_end)
    assert said(session) == ["u:Hi.", "a:The sea"]


def test_an_earlier_reply_is_cut_while_later_turns_stay():
    session = begun("The sea is wide.", "ok")
    ask(session, "Hi.")
    ask(session, "Go.")
    assert session.heard(7, turn_id=0)
    assert said(session) == ["u:Hi.", "a:The sea", "u:Go.", "a:ok"]
    assert_true_to_its_history(session)


def test_nothing_is_cut_where_nothing_was_replied():
    session = begun("ok")
    assert not session.heard(3)
    finish(session.prefill(request("Hi.")))
    assert not session.heard(3)
    assert not session.heard(3, turn_id=7)
    assert text_of(session) == "<s>u:Hi."
