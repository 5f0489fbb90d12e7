"""What of a clause is read aloud: its words, without the marks that lay them out."""

from __future__ import annotations

import re

MARKUP_AT_WORD_EDGE = re.compile(r"(?<!\w)[*_`#~>|]+|[*_`#~>|]+(?!\w)")
MARKUP = re.compile(r"[*_`#~>|]+")
# Pictographs and dingbats but numbers, what joins and varies them, and private use.
EMOJI = re.compile(
    "[\U0001f000-\U0001f0ff\U0001f10d-\U0001faff\u2600-\u2775\u2794-\u27bf\u2b00-\u2bff"
    "\u200d\ufe0e\ufe0f\u20e3\ue000-\uf8ff]+"
)


def spoken(text: str) -> str:
    """`text` as it is given to the voice; empty if there is nothing to be said."""
    text = MARKUP.sub(" ", MARKUP_AT_WORD_EDGE.sub("", EMOJI.sub(" ", text)))
    text = " ".join(text.split())
    return text if any(character.isalnum() for character in text) else ""
