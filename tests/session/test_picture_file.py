"""A picture's file is looked at before it is decoded: what is too large, or none, is refused, and says why."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import pytest
from PIL import Image
from session.tiny_vision_model import picture

from dora_voice_session import picture_file
from dora_voice_session.schema import MediaPart


def part(data: str) -> MediaPart:
    return MediaPart(type="image", data=data)


def png_that_claims(width: int, height: int) -> str:
    """The header of a picture of this size, and nothing of its pixels."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    header = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return base64.b64encode(header + struct.pack(">I", 0) + b"IEND" + struct.pack(">I", zlib.crc32(b"IEND"))).decode()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_picture_is_decoded_in_rgb(kind):
    file = part(picture(size=(30, 20), kind=kind))
    assert picture_file.check(file, 0) == 600
    image = picture_file.decode(file)
    assert (image.mode, image.size) == ("RGB", (30, 20))


def test_a_picture_of_a_phone_held_upright_is_turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert picture_file.decode(part(picture(size=(30, 20), kind="JPEG", exif=exif))).size == (20, 30)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("aGk=", "no picture: expected a file in one of the formats JPEG, PNG, WEBP"),
        ("", "no picture"),
        (picture(kind="GIF"), "no picture"),
        (picture()[:2000], "can't be decoded"),
        (png_that_claims(4097, 4096), "4097 x 4096 pixels, expected at most 16777216"),
        (png_that_claims(2**31 - 1, 2**31 - 1), "expected at most 16777216"),
        (png_that_claims(3300, 100), "3300 x 100 pixels, expected sides of at most 32 to 1"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_the_reason(data, why):
    with pytest.raises(ValueError, match=why):
        picture_file.check(part(data), 0)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch):
    """Sixty thousand by sixty thousand pixels in a few hundred bytes, and 100 million in some more."""
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    for width, height in ((60_000, 60_000), (10_000, 10_000)):
        with pytest.raises(ValueError, match="expected at most 16777216"):
            picture_file.check(part(png_that_claims(width, height)), 0)


def test_pictures_together_have_their_limits(monkeypatch):
    one = part(picture(size=(30, 20)))
    monkeypatch.setattr(picture_file, "LARGEST_PIXELS_TOGETHER", 1000)
    assert picture_file.check(one, 400) == 1000
    with pytest.raises(ValueError, match="1001 pixels up to here, expected at most 1000"):
        picture_file.check(one, 401)
    picture_file.check_together([one] * 64)
    with pytest.raises(ValueError, match="65 pictures, expected at most 64"):
        picture_file.check_together([one] * 65)
    monkeypatch.setattr(picture_file, "LARGEST_CHARACTERS_TOGETHER", len(one.data))
    picture_file.check_together([one])
    with pytest.raises(ValueError, match=f"pictures of {2 * len(one.data)} characters"):
        picture_file.check_together([one, one])


def test_noise_is_the_same_every_time_and_no_other():
    assert picture_file.noise((8, 4)) == picture_file.noise((8, 4))
    assert picture_file.noise((8, 4)) != picture_file.noise((4, 8))
    assert io.BytesIO(base64.b64decode(picture_file.noise((8, 4)).data)).read(4) == b"\x89PNG"
