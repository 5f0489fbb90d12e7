"""Which tokens stand for a picture: the same for the same picture, and no others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dora_voice_session.picture_token import MARK, PictureToken, key_of, mark
from dora_voice_session.prefix import common_prefix
from dora_voice_session.schema import ImageOptions, MediaPart

FILES = st.sampled_from(["", "aGk=", "aGkh"])
SLICES = st.sampled_from([None, 1, 9, 2**70])


def part(data: str, slices: int | None) -> MediaPart:
    return MediaPart(type="image", data=data, max_slice_nums=slices)


def tokens(picture: MediaPart, count: int = 5) -> list[int]:
    return [PictureToken(picture, key_of(picture), i) for i in range(count)]


@given(FILES, SLICES, FILES, SLICES)
def test_tokens_are_the_same_if_picture_and_cut_are_the_same_and_share_nothing_otherwise(data, slices, other, cut):
    one, two = part(data, slices), part(other, cut)
    default = ImageOptions().max_slice_nums
    are_same = (data, slices or default) == (other, cut or default)
    assert (tokens(one) == tokens(two)) == are_same
    assert common_prefix(tokens(one), tokens(two)) == (5 if are_same else 0)
    assert (mark(one) == mark(two)) == are_same


def test_a_token_is_none_of_the_vocabulary_and_brings_its_picture():
    picture = part("aGk=", 3)
    held = tokens(picture)
    assert len(set(held)) == 5
    assert max(held) < 0
    assert all(token.picture is picture and token.index == i for i, token in enumerate(held))


def test_a_mark_is_found_in_a_text():
    picture = part("aGk=", None)
    assert MARK.split(f"a{mark(picture)}{mark(picture)}b") == ["a", key_of(picture), "", key_of(picture), "b"]
