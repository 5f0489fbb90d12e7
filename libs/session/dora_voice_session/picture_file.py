"""Pictures as files: what is too large is refused before it is decoded. Pillow is imported with the first picture."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dora_voice_session.schema import MediaPart

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP")
MOST_PICTURES = 64
"""Of a request, as are the limits of what they have together."""
LARGEST_PIXELS, LARGEST_PIXELS_TOGETHER = 2**24, 2**26
LARGEST_RATIO = 32
"""Of the sides: models that give the shorter side a length make the longer one this many times as long."""
LARGEST_CHARACTERS_TOGETHER = 2**24
"""Of base64."""


def check_together(pictures: Sequence[MediaPart]) -> None:
    """Raises ValueError if they are too many or too large, whatever is in them."""
    if len(pictures) > MOST_PICTURES:
        raise ValueError(f"{len(pictures)} pictures, expected at most {MOST_PICTURES}")
    if (length := sum(len(picture.data) for picture in pictures)) > LARGEST_CHARACTERS_TOGETHER:
        raise ValueError(f"pictures of {length} characters, expected at most {LARGEST_CHARACTERS_TOGETHER}")


def check(picture: MediaPart, pixels_before: int) -> int:
    """Raises ValueError if it can't be decoded, or has too many pixels, alone or with those before it.

    Returns how many those before it and this have.
    """
    file = _opened(picture)
    pixels = file.width * file.height
    if pixels > LARGEST_PIXELS:
        raise ValueError(f"{file.width} x {file.height} pixels, expected at most {LARGEST_PIXELS}")
    if max(file.size) > LARGEST_RATIO * min(file.size):
        raise ValueError(f"{file.width} x {file.height} pixels, expected sides of at most {LARGEST_RATIO} to 1")
    if (together := pixels_before + pixels) > LARGEST_PIXELS_TOGETHER:
        raise ValueError(f"{together} pixels up to here, expected at most {LARGEST_PIXELS_TOGETHER}")
    try:
        file.load()
    except Exception as error:
        raise ValueError(f"the picture can't be decoded: {error}") from error
    return together


def decode(picture: MediaPart) -> Image:
    """In RGB, and the right way up. Of several pictures in a file the first."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(_opened(picture)).convert("RGB")


def noise(size: tuple[int, int]) -> MediaPart:
    """A picture of this width and height that is always the same."""
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8)
    Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
    return MediaPart(type="image", data=base64.b64encode(file.getvalue()).decode())


def _opened(picture: MediaPart) -> Image:
    """As far as its header."""
    from PIL import Image

    try:
        return Image.open(io.BytesIO(base64.b64decode(picture.data)), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise ValueError(f"{error}: expected at most {LARGEST_PIXELS} pixels") from error
    except Exception as error:
        raise ValueError(f"no picture: expected a file in one of the formats {', '.join(FORMATS)}") from error
