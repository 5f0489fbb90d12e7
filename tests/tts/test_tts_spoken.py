"""Marks that lay a text out are not read aloud."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dora_voice_tts.spoken import spoken


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Plain words, as they are.", "Plain words, as they are."),
        ("**Bold**, *light* and `code`.", "Bold, light and code."),
        ("# A title\n", "A title"),
        ("snake_case and 2*3", "snake case and 2 3"),
        ("> a ~~wrong~~ quote", "a wrong quote"),
        ("Hi 😀👍🏽! ☀️ 1️⃣", "Hi ! 1"),
        ("It is 20 °C and costs $5.", "It is 20 °C and costs $5."),
        ("  much \n  space ", "much space"),
        ("Größe und 你好", "Größe und 你好"),
    ],
)
def test_words_are_kept_and_marks_are_not(text: str, expected: str) -> None:
    assert spoken(text) == expected


@pytest.mark.parametrize("text", ["", " \n", "***", "---", "😀", "...", '"'])
def test_there_is_nothing_to_say(text: str) -> None:
    assert spoken(text) == ""


@given(st.text())
@example("❶ 🄀")
def test_every_letter_and_digit_is_kept_in_order(text: str) -> None:
    said = [character for character in spoken(text) if character.isalnum()]
    assert said == [character for character in text if character.isalnum() and not "\ue000" <= character <= "\uf8ff"]
    assert spoken(spoken(text)) == spoken(text)
