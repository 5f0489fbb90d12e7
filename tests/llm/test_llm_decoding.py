"""Which token comes next, what of its text may be sent, and where a reply ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_voice_llm.decoding import ReplyText, is_long_enough, next_token


def decode_bytes(tokens):
    return bytes(tokens).decode("utf-8", "replace")


def test_a_character_is_sent_when_it_is_whole():
    reply = ReplyText(decode_bytes)
    assert [reply.add(byte) for byte in "né!".encode()] == ["n", "", "é", "!"]
    assert reply.text == "né!"


def test_a_torn_character_at_the_end_is_no_part_of_the_reply():
    reply = ReplyText(decode_bytes)
    for byte in "ok 🙂".encode()[:-1]:
        reply.add(byte)
    assert reply.text == "ok "
    assert reply.whole_tokens == 3


@given(st.text(max_size=40))
def test_deltas_add_up_to_the_text(text):
    text = text.replace("\ufffd", "")
    reply = ReplyText(decode_bytes)
    assert "".join([reply.add(byte) for byte in text.encode()]) == text == reply.text
    assert reply.whole_tokens == len(reply.tokens)


@given(st.lists(st.integers(0, 255), max_size=40))
def test_no_bytes_make_deltas_disagree_with_the_text(tokens):
    reply = ReplyText(decode_bytes)
    deltas = [reply.add(token) for token in tokens]
    assert "".join(deltas) == reply.text
    assert decode_bytes(tokens).startswith(reply.text)
    assert decode_bytes(tokens[: reply.whole_tokens]) in (
        reply.text,
        reply.text[: len(decode_bytes(tokens[: reply.whole_tokens]))],
    )


@pytest.mark.parametrize("end", ["It is.", "Is it?", "It is!", "Wait…", '"It is."', "好。", "It is. "])
def test_a_reply_past_its_half_ends_with_a_sentence(end):
    assert not is_long_enough(end, 9, 20)
    assert is_long_enough(end, 10, 20)


@pytest.mark.parametrize("middle", ["It is", "It is,", "Pi is 3.", ""])
def test_a_reply_is_never_longer_than_its_limit(middle):
    assert not is_long_enough(middle, 19, 20)
    assert is_long_enough(middle, 20, 20)


def test_the_likeliest_token_is_chosen_unless_the_reply_has_it_already():
    logits = np.array([0.0, 2.0, 1.9, -1.0], np.float32)
    assert next_token(logits, []) == 1
    assert next_token(logits, [1]) == 2
    assert next_token(logits, [], forbidden={1, 2}) == 0
    assert logits[1] == 2.0
