"""Tokens of the past are never made again: anchors, and what happens when the past is edited."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dora_voice_llm.prompt import PromptTokens


class Tokenizer:
    """One token per character, and remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, text):
        self.asked.append(text)
        return [ord(char) for char in text]


def test_only_the_text_after_the_last_reply_is_tokenised():
    tokenizer = Tokenizer()
    prompt = PromptTokens(tokenizer)
    prompt.hold("<u>Hi<a>", prompt.of("<u>Hi<a>"))
    # The model spelled "Hello" with one token of its own.
    prompt.hold("<u>Hi<a>Hello", [*map(ord, "<u>Hi<a>"), 9999])
    tokens = prompt.of("<u>Hi<a>Hello<u>Bye<a>")
    assert tokens == [*map(ord, "<u>Hi<a>"), 9999, *map(ord, "<u>Bye<a>")]
    assert tokenizer.asked == ["<u>Hi<a>", "<u>Bye<a>"]


def test_a_reply_cut_to_what_was_heard_is_tokenised_from_where_it_began():
    tokenizer = Tokenizer()
    prompt = PromptTokens(tokenizer)
    prompt.hold("<u>Hi<a>", prompt.of("<u>Hi<a>"))
    prompt.hold("<u>Hi<a>Hello", [*map(ord, "<u>Hi<a>"), 9999])
    assert prompt.of("<u>Hi<a>Hell<u>") == [*map(ord, "<u>Hi<a>Hell<u>")]
    assert tokenizer.asked[-1] == "Hell<u>"


def test_a_template_that_rewrites_the_past_is_tokenised_whole():
    prompt = PromptTokens(Tokenizer())
    prompt.hold("<u>Hi<a><think>", [1, 2, 3])
    assert prompt.of("[u]Hi[a]") == [*map(ord, "[u]Hi[a]")]


@given(st.lists(st.tuples(st.integers(0, 30), st.text("ab<", max_size=8), st.text("ab", max_size=5)), max_size=8))
def test_tokens_always_spell_the_rendering(edits):
    prompt, text = PromptTokens(lambda text: [ord(char) for char in text]), ""
    for kept, new, reply in edits:
        rendering = text[:kept] + new
        tokens = prompt.of(rendering)
        assert "".join(map(chr, tokens)) == rendering
        prompt.hold(rendering, tokens)
        text = rendering + reply
        prompt.hold(text, [*tokens, *map(ord, reply)])
