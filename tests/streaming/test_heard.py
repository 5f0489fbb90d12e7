import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_voice.heard import heard_of

REPLY = "The sea is wide, and deep."


@pytest.mark.parametrize(
    ("end", "heard"),
    [
        (0, ""),
        (2, ""),
        (3, "The"),
        (4, "The"),
        (6, "The"),
        (7, "The sea"),
        (15, "The sea is wide"),
        (16, "The sea is wide,"),
    ],
)
def test_a_torn_word_was_not_heard(end, heard):
    assert heard_of(REPLY, end) == heard


def test_an_apostrophe_is_part_of_its_word():
    assert heard_of("I don't know", 5) == "I"


@given(st.text("ab '.,", max_size=30), st.integers(0, 30))
def test_what_was_heard_is_a_beginning_of_the_reply_no_longer_than_what_was_played(reply, end):
    heard = heard_of(reply, end)
    assert reply.startswith(heard)
    assert len(heard) <= end
