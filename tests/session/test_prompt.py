"""Tokens of the past are never made again: anchors, and what happens when the past is edited."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dora_voice_session.prompt import Anchor, PromptTokens


class Tokenizer:
    """One token per character, and remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, text):
        self.asked.append(text)
        return [ord(char) for char in text]


BEGINNING = "<u>Hi<a>"


def answered(reply="Hello", tokens=(9998, 9999), anchors=((0, 0), (1, 3), (2, 5))):
    """A prompt with a reply that the model spelled in tokens of its own."""
    tokenizer = Tokenizer()
    prompt = PromptTokens(tokenizer)
    asked = prompt.of(BEGINNING)
    places = [Anchor(len(asked) + n, len(BEGINNING) + chars) for n, chars in anchors]
    prompt.hold(BEGINNING + reply, [*asked, *tokens], places)
    return prompt, tokenizer


def test_only_the_text_after_the_last_reply_is_tokenised():
    prompt, tokenizer = answered()
    assert prompt.of("<u>Hi<a>Hello<u>Bye<a>") == [*map(ord, BEGINNING), 9998, 9999, *map(ord, "<u>Bye<a>")]
    assert tokenizer.asked == [BEGINNING, "<u>Bye<a>"]


def test_a_reply_that_was_cut_is_tokenised_from_the_last_token_that_is_still_whole():
    prompt, tokenizer = answered()
    assert prompt.of("<u>Hi<a>Hell<u>") == [*map(ord, BEGINNING), 9998, *map(ord, "l<u>")]
    assert tokenizer.asked[-1] == "l<u>"


def test_a_reply_of_which_nothing_is_left_is_tokenised_from_where_it_began():
    prompt, tokenizer = answered()
    assert prompt.of("<u>Hi<a>Bye") == [*map(ord, "<u>Hi<a>Bye")]
    assert tokenizer.asked[-1] == "Bye"


def test_tokens_beyond_the_last_anchor_are_not_believed():
    prompt, _ = answered(reply="Hello", tokens=(9998, 9999, 7), anchors=((0, 0), (2, 5)))
    assert prompt.of("<u>Hi<a>Hello<u>") == [*map(ord, BEGINNING), 9998, 9999, *map(ord, "<u>")]


def test_a_template_that_rewrites_the_past_is_tokenised_whole():
    prompt, _ = answered()
    assert prompt.of("[u]Hi[a]") == [*map(ord, "[u]Hi[a]")]


def test_anchors_of_earlier_replies_hold_after_later_ones():
    prompt, tokenizer = answered()
    longer = "<u>Hi<a>Hello<u>Bye<a>"
    asked = prompt.of(longer)
    prompt.hold(
        f"{longer}Ciao", [*asked, 7], [Anchor(len(asked), len(longer)), Anchor(len(asked) + 1, len(longer) + 4)]
    )
    assert prompt.of("<u>Hi<a>Hello<u>No")[:10] == [*map(ord, BEGINNING), 9998, 9999]
    assert tokenizer.asked[-1] == "<u>No"


def test_asking_for_one_text_leaves_the_tokens_of_another():
    prompt, _ = answered()
    prompt.of("something else")
    assert 9999 in prompt.of("<u>Hi<a>Hello")


def test_a_copy_knows_nothing_of_what_comes_later():
    prompt, _ = answered()
    copy = prompt.copy()
    prompt.hold("[u]", [1], [Anchor(1, 3)])
    assert copy.of("<u>Hi<a>Hello") == [*map(ord, BEGINNING), 9998, 9999]
    copy.hold("[a]", [2], [Anchor(1, 3)])
    assert prompt.of("[u]") == [1]


@given(st.lists(st.tuples(st.integers(0, 30), st.text("ab<", max_size=8), st.text("ab", max_size=5)), max_size=8))
def test_tokens_always_spell_the_rendering(edits):
    prompt, text = PromptTokens(lambda text: [ord(char) for char in text]), ""
    for kept, new, reply in edits:
        rendering = text[:kept] + new
        tokens = prompt.of(rendering)
        assert "".join(map(chr, tokens)) == rendering
        text = rendering + reply
        anchors = [Anchor(len(rendering) + n, len(rendering) + n) for n in range(0, len(reply) + 1, 2)]
        prompt.hold(text, [*tokens, *map(ord, reply)], anchors)
