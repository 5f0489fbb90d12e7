"""What of a text was heard: the one rule for whoever remembers or writes it down."""

from __future__ import annotations

import re
import unicodedata

# Chinese and Japanese write no spaces: each of these stands for itself.
ALONE = "\u3005-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
IN_A_WORD = rf"(?![{ALONE}])[\w'’\u0300-\u036f]"
JOINER = "\u200d"
MODIFIERS = "\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"


def heard_of(text: str, end: int) -> str:
    """`text` up to the code point `end`, without a word or character that this tears, and without space at its end."""
    if end >= len(text):
        return text
    end = max(0, end)
    while end and _goes_on(text[end], text[end - 1]):
        end -= 1
    heard = text[:end]
    if re.match(IN_A_WORD, text[end]):
        heard = re.sub(rf"(?:{IN_A_WORD})+$", "", heard)
    return heard.rstrip()


def _goes_on(code_point: str, before: str) -> bool:
    """Whether the two belong to one character as people see it."""
    return bool(unicodedata.combining(code_point)) or code_point in JOINER + MODIFIERS or before == JOINER
