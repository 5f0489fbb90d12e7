"""What stands for a picture in a rendered conversation, and in its tokens. Pure."""

from __future__ import annotations

import hashlib
import re

from dora_voice_session.schema import ImageOptions, MediaPart

MARK_BEGIN, MARK_END = "\ue001", "\ue002"
"""Characters of the private use area. The first is taken out of what people write: nobody names a picture."""
MARK = re.compile(f"{MARK_BEGIN}([0-9a-f]+){MARK_END}")
"""Groups: the key of a picture."""

MOST_TOKENS = 2**32
"""Of one picture."""


def most_slices(picture: MediaPart) -> int:
    return picture.max_slice_nums or ImageOptions().max_slice_nums


def key_of(picture: MediaPart) -> str:
    """Two pictures that aren't the same, or aren't cut the same, have different keys."""
    return hashlib.sha256(f"{picture.digest} {most_slices(picture)}".encode()).hexdigest()[:32]


def mark(picture: MediaPart) -> str:
    """Stands for the picture in a text."""
    return f"{MARK_BEGIN}{key_of(picture)}{MARK_END}"


class PictureToken(int):
    """One of the tokens that stand for a picture: a number below 0, the same for the same place in the same picture.

    So lists of tokens are compared as ever, and what of them is equal is equal in its pictures, too. The token
    brings its picture along: whoever holds the tokens can compute them.
    """

    picture: MediaPart
    key: str
    index: int
    """The how manieth of its picture."""

    def __new__(cls, picture: MediaPart, key: str, index: int) -> PictureToken:
        token = super().__new__(cls, -1 - (int(key, 16) * MOST_TOKENS + index))
        token.picture, token.key, token.index = picture, key, index
        return token
