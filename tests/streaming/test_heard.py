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


@pytest.mark.parametrize("end", [9, 10, 11, 13, 14, 17])
def test_half_a_number_was_not_heard(end):
    assert heard_of("It costs 1,000,000 dollars.", end) == "It costs"


@pytest.mark.parametrize(("end", "heard"), [(8, "At 10:45"), (9, "At 10:45."), (7, "At"), (6, "At"), (5, "At")])
def test_the_point_behind_a_number_is_none_of_it(end, heard):
    assert heard_of("At 10:45. Ok", end) == heard


@pytest.mark.parametrize(
    ("reply", "end", "heard"),
    [
        ("मेरा नाम हिन्दी है।", 12, "मेरा नाम"),
        ("मेरा नाम हिन्दी है।", 15, "मेरा नाम हिन्दी"),
        ("\u0628\u064e\u062a\u064e \u0628\u064e", 2, ""),
        ("法国的首都是巴黎。", 4, "法国的首"),
        ("我用 Python 写的。", 6, "我用"),
        ("パリです", 2, "パリ"),
        ("Bie\u0301n, s\u0131", 3, ""),
        ("Oh 👩\u200d🚀!", 4, "Oh"),
        ("Oh 👍🏽!", 4, "Oh"),
        ("Oh 👍🏽!", 5, "Oh 👍🏽"),
    ],
)
def test_words_without_spaces_and_characters_of_several_code_points_are_not_torn(reply, end, heard):
    assert heard_of(reply, end) == heard


def test_nothing_is_heard_before_the_beginning():
    assert heard_of(REPLY, -3) == ""


@given(st.text("ab1 '.,\u0301\u093f👍🏽\u200d", max_size=30), st.integers(0, 30))
def test_what_was_heard_is_a_beginning_of_the_reply_no_longer_than_what_was_played(reply, end):
    heard = heard_of(reply, end)
    assert reply.startswith(heard)
    assert len(heard) <= end
