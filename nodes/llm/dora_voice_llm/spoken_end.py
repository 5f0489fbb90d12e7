"""Where a spoken reply may end, long before it must: a listener can't skip. Pure."""

from __future__ import annotations

import re

SENTENCE_END = re.compile(r"(?:(?<!\d)\.|[!?…。！？])[\"'”’)]*\s*$")


def is_long_enough(text: str, tokens: int, most_tokens: int) -> bool:
    """Whether the text ends a sentence after half of `most_tokens`, or has all of them."""
    return tokens >= most_tokens or (2 * tokens >= most_tokens and SENTENCE_END.search(text) is not None)
