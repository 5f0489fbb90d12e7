"""Files and samples that clients send, decoded within limits. Runs on other threads than the clients' loop."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import av
import numpy as np
from av.audio.resampler import AudioResampler
from av.container import InputContainer
from av.error import FFmpegError
from PIL import Image, UnidentifiedImageError

from dora_voice.audio import EMPTY, Samples, from_int16, resample
from dora_voice.messages import SOURCE_RATE_HZ
from dora_voice_gateway.errors import ClientError
from dora_voice_session.schema import MediaPart

FRAMES_A_SECOND = 1
MOST_FRAME_SIDE = 768
"""More than a model looks at in one piece."""
PcmFormat = Literal["f32le", "s16le"]
DTYPES = {"f32le": np.dtype("<f4"), "s16le": np.dtype("<i2")}


@dataclass(frozen=True, slots=True)
class Limits:
    audio_s: float
    video_s: float
    image_pixels: float


@dataclass(frozen=True, slots=True)
class Film:
    """One picture a second, as JPEG files, with the second it is from; and the sound, 16 kHz mono."""

    pictures: list[tuple[float, bytes]] = field(default_factory=list)
    samples: Samples = field(default_factory=lambda: EMPTY)


def sound_of(part: MediaPart, limits: Limits) -> Samples:
    """16 kHz mono. Raises ClientError for what can't be decoded or is too long."""
    data = base64.b64decode(part.data)
    if part.format == "file":
        samples = _file_sound(data, limits.audio_s)
    else:
        samples = resample(samples_of(data, part.format), part.sample_rate, SOURCE_RATE_HZ)
    if len(samples) > limits.audio_s * SOURCE_RATE_HZ:
        raise ClientError(
            "too_large", f"{len(samples) / SOURCE_RATE_HZ:.1f} s of sound: expected at most {limits.audio_s:g}"
        )
    return samples


def check_picture(part: MediaPart, limits: Limits) -> None:
    """Raises ClientError for what is no picture, or too large a one, without decoding it."""
    try:
        with warnings.catch_warnings():
            # Its size is judged here.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(base64.b64decode(part.data))) as picture:
                width, height = picture.size
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        raise ClientError("bad_request", f"no picture ({error}): expected a file such as PNG or JPEG") from error
    _check_pixels(width, height, limits)


def film_of(part: MediaPart, limits: Limits) -> Film:
    """Raises ClientError for what can't be decoded, is too long, or too large."""
    data = base64.b64decode(part.data)
    try:
        with av.open(io.BytesIO(data), "r") as container:
            has_sound = bool(container.streams.audio)
            pictures = list(_pictures(container, limits))
    except (FFmpegError, ValueError, OSError) as error:
        raise ClientError("bad_request", f"no film ({error}): expected a file such as mp4 or webm") from error
    if not pictures:
        raise ClientError("bad_request", "no film (no picture in it): expected a file such as mp4 or webm")
    return Film(pictures, _file_sound(data, limits.video_s) if has_sound else EMPTY)


def _pictures(container: InputContainer, limits: Limits) -> Iterator[tuple[float, bytes]]:
    if not container.streams.video:
        return
    stream = container.streams.video[0]
    _check_pixels(stream.codec_context.width, stream.codec_context.height, limits)
    next_s = 0.0
    for frame in container.decode(stream):
        at_s = float(frame.time or 0.0)
        if at_s > limits.video_s:
            raise ClientError("too_large", f"a film of more than {limits.video_s:g} s: expected at most VIDEO_S")
        if at_s >= next_s:
            _check_pixels(frame.width, frame.height, limits)
            file = io.BytesIO()
            picture = frame.to_image()
            picture.thumbnail((MOST_FRAME_SIDE, MOST_FRAME_SIDE))
            picture.save(file, "JPEG")
            yield at_s, file.getvalue()
            next_s = at_s + 1 / FRAMES_A_SECOND


def _file_sound(data: bytes, longest_s: float) -> Samples:
    samples: list[Samples] = []
    count = 0
    try:
        with av.open(io.BytesIO(data), "r") as container:
            if not container.streams.audio:
                raise ClientError("bad_request", "no sound in the file: expected wav, flac, mp3, m4a, ogg or webm")
            resampler = AudioResampler(format="fltp", rate=SOURCE_RATE_HZ)
            for frame in chain(container.decode(container.streams.audio[0]), [None]):
                for resampled in resampler.resample(frame):
                    samples.append(resampled.to_ndarray().mean(axis=0, dtype=np.float32))
                    count += len(samples[-1])
                if count > longest_s * SOURCE_RATE_HZ:
                    break
    except (FFmpegError, ValueError, OSError) as error:
        if not count:
            raise ClientError(
                "bad_request", f"no sound ({error}): expected a file such as wav, flac, mp3, m4a, ogg or webm"
            ) from error
    return np.concatenate([EMPTY, *samples])


def samples_of(data: bytes, kind: PcmFormat) -> Samples:
    """Mono PCM as float32, of the same sample rate. Raises ClientError for half samples, NaN and infinity."""
    dtype: np.dtype[Any] = DTYPES[kind]
    if len(data) % dtype.itemsize:
        raise ClientError("bad_request", f"{len(data)} bytes: expected whole samples of {dtype.itemsize} bytes")
    samples = np.frombuffer(data, dtype)
    if kind == "s16le":
        return from_int16(samples)
    if not np.isfinite(samples).all():
        raise ClientError("bad_request", "samples that are NaN or infinite: expected float32 in [-1, 1]")
    return samples.astype(np.float32)


def _check_pixels(width: int, height: int, limits: Limits) -> None:
    if width * height > limits.image_pixels:
        raise ClientError(
            "too_large", f"{width} × {height} pixels: expected at most IMAGE_MEGAPIXELS={limits.image_pixels / 1e6:g}"
        )
