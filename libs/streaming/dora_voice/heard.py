"""What of a text was heard: the one rule for whoever remembers or writes it down."""

from __future__ import annotations

import re
import unicodedata

# Chinese and Japanese write no spaces: each of these stands for itself.
ALONE = "\u3005-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
IN_A_WORD = rf"(?![{ALONE}])[\w'’]"
IN_A_NUMBER = r"\d[.,:]\d"
JOINER = "\u200d"
MODIFIERS = "\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"


def heard_of(text: str, end: int) -> str:
    """`text` up to the code point `end`, without a word or character that this tears, and without space at its end."""
    if end >= len(text):
        return text
    end = max(0, end)
    while end and _tears(text, end):
        end -= 1
    return text[:end].rstrip()


def _tears(text: str, at: int) -> bool:
    """Whether a word, a number, or a character as people see it, lies on both sides of this place."""
    before, after = text[at - 1], text[at]
    if _is_mark(after) or after in JOINER + MODIFIERS or before == JOINER:
        return True
    if _is_in_a_word(before) and _is_in_a_word(after):
        return True
    return any(re.match(IN_A_NUMBER, text[start : start + 3]) for start in (at - 2, at - 1) if start >= 0)


def _is_in_a_word(code_point: str) -> bool:
    return bool(re.match(IN_A_WORD, code_point)) or (_is_mark(code_point) and code_point not in MODIFIERS)


def _is_mark(code_point: str) -> bool:
    """An accent, or a vowel sign: it belongs to the letter before."""
    return unicodedata.category(code_point).startswith("M")
