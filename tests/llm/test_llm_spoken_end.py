"""Where a spoken reply ends."""

from __future__ import annotations

import pytest

from dora_voice_llm.spoken_end import is_long_enough


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("Yes.", 9, False),
        ("Yes.", 10, True),
        ("Yes,", 10, False),
        ("It is 3.", 10, False),
        ("Yes,", 20, True),
        ('He said "No!" ', 12, True),
        ("好的。", 12, True),
        ("", 20, True),
    ],
)
def test_a_reply_ends_at_a_sentence_after_half_of_its_tokens_or_with_all_of_them(text, tokens, expected):
    assert is_long_enough(text, tokens, 20) is expected
