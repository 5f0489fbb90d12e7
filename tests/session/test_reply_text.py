"""What of a reply may be given out: whole characters only, and nothing of a stop text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_voice_session.prompt import Anchor
from dora_voice_session.reply_text import ReplyText

CONTROL = 256


def decode_bytes(tokens):
    return bytes(token for token in tokens if token != CONTROL).decode("utf-8", "replace")


def read(text, stop=(), decode=decode_bytes):
    """The reply that got these bytes one by one until it stopped, and its deltas."""
    reply, deltas = ReplyText(decode, stop), []
    for token in text.encode() if isinstance(text, str) else text:
        deltas.append(reply.add(token))
        if reply.is_stopped:
            break
    return reply, [*deltas, reply.end()]


def test_a_character_is_given_out_when_it_is_whole():
    reply, deltas = read("né!")
    assert deltas == ["n", "", "é", "!", ""]
    assert reply.text == "né!"


def test_an_emoji_comes_in_one_piece():
    _, deltas = read("a🙂")
    assert deltas == ["a", "", "", "", "🙂", ""]


def test_a_torn_character_at_the_end_is_no_part_of_the_reply():
    reply, deltas = read("ok 🙂".encode()[:-1])
    assert "".join(deltas) == reply.text == "ok "
    assert reply.anchors[-1] == Anchor(tokens=3, chars=3)


def test_bytes_that_are_no_character_do_not_swallow_what_follows():
    reply, deltas = read([ord("a"), 0xFF, ord("b")])
    assert "".join(deltas) == reply.text == "a\ufffdb"


@given(st.text(max_size=40))
def test_deltas_add_up_to_the_text(text):
    text = text.replace("\ufffd", "")
    reply, deltas = read(text)
    assert "".join(deltas) == text == reply.text
    assert reply.anchors[-1] == Anchor(len(reply.tokens), len(text))


@given(st.lists(st.integers(0, CONTROL), max_size=40))
def test_whatever_tokens_come_the_anchors_are_places_in_the_text(tokens):
    reply, deltas = read(tokens)
    assert "".join(deltas) == reply.text == reply.spelled
    assert reply.anchors[0] == Anchor(0, 0)
    for anchor, following in zip(reply.anchors, reply.anchors[1:], strict=False):
        assert anchor.tokens < following.tokens
        assert anchor.chars < following.chars
    for anchor in reply.anchors:
        assert decode_bytes(tokens[: anchor.tokens]) == reply.text[: anchor.chars]


def test_a_control_token_within_a_reply_is_not_spelled_and_leaves_no_trace_where_the_reply_is_cut():
    reply, _ = read([CONTROL, ord("a"), CONTROL, ord("b")])
    assert reply.text == "ab"
    assert reply.anchors == [Anchor(0, 0), Anchor(2, 1), Anchor(4, 2)]


@pytest.mark.parametrize(
    ("decoded", "deltas"),
    [
        pytest.param({(1,): "Hello", (1, 2): "Hello there", (2,): "there"}, ["Hello", " there"], id="space in front"),
        pytest.param({(1,): "don", (1, 2): "don't", (2,): " 't"}, ["don", "'t"], id="joined"),
    ],
)
def test_a_token_is_spelled_as_it_is_after_the_one_before(decoded, deltas):
    reply = ReplyText(lambda tokens: decoded.get(tuple(tokens), ""))
    assert [reply.add(token) for token in (1, 2)] == deltas


# Stop texts


def test_a_reply_ends_before_a_stop_text_that_comes_in_pieces():
    reply, deltas = read("Yes.\nUser: no", stop=["\nUser:"])
    assert "".join(deltas) == reply.text == "Yes."
    assert reply.is_stopped
    assert decode_bytes(reply.tokens) == "Yes.\nUser:"


def test_what_may_be_a_stop_text_is_held_back_until_it_is_none():
    _, deltas = read("a##b###", stop=["###"])
    assert deltas == ["a", "", "", "##b", "", "", "", ""]


def test_what_was_held_back_is_given_out_when_the_reply_ends():
    reply, deltas = read("a##", stop=["###"])
    assert deltas == ["a", "", "", "##"]
    assert reply.text == "a##"
    assert not reply.is_stopped


def test_a_stop_text_that_begins_inside_another_one_is_found():
    assert read("xaab", stop=["aac", "ab"])[0].text == "xa"
    assert read("xabac", stop=["abad", "bac"])[0].text == "xa"


def test_a_repeated_beginning_does_not_hide_the_stop_text():
    assert read("aaab", stop=["aab"])[0].text == "a"


def test_a_long_stop_text_costs_no_more_than_what_may_begin_it():
    compared = []

    class Stop(str):
        __slots__ = ()

        def __getitem__(self, part):
            compared.append(part)
            return super().__getitem__(part)

    reply, _ = read("aaabaaab", stop=[Stop("a" * 100_000)])
    assert reply.text == "aaabaaab"
    assert len(compared) <= 20


def test_a_stop_text_of_whole_characters_is_not_found_in_a_torn_one():
    reply, deltas = read("ja🙃🙂", stop=["🙂"])
    assert "".join(deltas) == "ja🙃"
    assert reply.is_stopped


def test_a_stop_text_at_the_very_beginning_leaves_nothing():
    reply, deltas = read("###", stop=["###"])
    assert deltas == ["", "", "", ""]
    assert reply.anchors == [Anchor(0, 0)]


def test_anchors_end_where_the_stop_text_begins():
    reply, _ = read("ab##", stop=["##"])
    assert reply.anchors == [Anchor(0, 0), Anchor(1, 1), Anchor(2, 2)]


@given(
    st.text("abc", max_size=14),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(1, 5), min_size=14, max_size=14),
)
def test_a_reply_is_the_same_however_it_is_cut_into_tokens(text, stop, sizes):
    words = {}
    for size in sizes:
        if text[sum(map(len, words.values())) :]:
            words[len(words)] = text[sum(map(len, words.values())) :][:size]
    spoken, one_by_one = read(words, stop, lambda tokens: "".join(words[token] for token in tokens)), read(text, stop)
    assert spoken[0].text == one_by_one[0].text == "".join(spoken[1])
    assert spoken[0].is_stopped == one_by_one[0].is_stopped == any(each in text for each in stop)
    assert not any(each in spoken[0].text for each in stop)
