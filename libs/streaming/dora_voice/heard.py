"""What of a text was heard: the one rule for whoever remembers or writes it down."""

from __future__ import annotations

import re


def heard_of(text: str, end: int) -> str:
    """`text` up to the code point `end`, without a word that it would tear and without space at its end."""
    if end >= len(text):
        return text
    heard = text[:end]
    if re.match(r"[\w'’]", text[end]):
        heard = re.sub(r"[\w'’]+$", "", heard)
    return heard.rstrip()
