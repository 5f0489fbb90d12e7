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
from PIL import Image

from dora_voice.audio import EMPTY, Samples, from_int16, resample
from dora_voice.messages import SOURCE_RATE_HZ
from dora_voice_gateway.errors import ClientError
from dora_voice_session.schema import MediaPart

FRAMES_A_SECOND = 1
MOST_FRAME_SIDE = 768
"""More than a model looks at in one piece."""
MOST_FRAMES_A_SECOND = 120
MOST_STREAMS = 16
FILES = "wav,flac,mp3,aac,aiff,amr,caf,ogg,mov,matroska,avi,mpegts"
"""What is opened. FFmpeg knows others, which name files of this machine and addresses of its network."""
PICTURES = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
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
    if part.format is None:
        return _file_sound(data, limits, "AUDIO_S", limits.audio_s)
    samples = samples_of(data, part.format)
    rate_hz = part.sample_rate or SOURCE_RATE_HZ
    _check_length(len(samples) / rate_hz, "AUDIO_S", limits.audio_s)
    return resample(samples, rate_hz, SOURCE_RATE_HZ)


def check_picture(part: MediaPart, limits: Limits) -> None:
    """Raises ClientError for what is no picture, or too large a one, without decoding it."""
    try:
        with warnings.catch_warnings():
            # Its size is judged here.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(base64.b64decode(part.data)), formats=PICTURES) as picture:
                width, height = picture.size
    except Image.DecompressionBombError as error:
        raise ClientError("too_large", f"{error}: expected at most {_pixels(limits)}") from error
    # Pillow's readers raise whatever they stumble over.
    except Exception as error:
        raise ClientError("bad_request", f"no picture ({error}): expected a file of {', '.join(PICTURES)}") from error
    _check_pixels(width, height, limits)


def film_of(part: MediaPart, limits: Limits) -> Film:
    """Raises ClientError for what can't be decoded, is too long, or too large."""
    data = base64.b64decode(part.data)
    try:
        with _open(data, limits) as container:
            has_sound = bool(container.streams.audio)
            pictures = list(_pictures(container, limits))
    except (FFmpegError, ValueError, OSError) as error:
        raise ClientError("bad_request", f"no film ({error}): expected a file such as mp4 or webm") from error
    if not pictures:
        raise ClientError("bad_request", "no film (no picture in it): expected a file such as mp4 or webm")
    return Film(pictures, _file_sound(data, limits, "VIDEO_S", limits.video_s) if has_sound else EMPTY)


def _open(data: bytes, limits: Limits) -> InputContainer:
    # Opening a file decodes its first pictures, a sound's cover too.
    most_pixels = {"max_pixels": str(int(limits.image_pixels))}
    options = {"format_whitelist": FILES, "protocol_whitelist": "none"}
    by_stream: Any = [most_pixels] * MOST_STREAMS  # its type in av is wrong
    return av.open(io.BytesIO(data), "r", options=options, stream_options=by_stream)


def _pictures(container: InputContainer, limits: Limits) -> Iterator[tuple[float, bytes]]:
    if not container.streams.video:
        return
    stream = container.streams.video[0]
    codec = stream.codec_context
    if not codec.width:
        raise ClientError("too_large", f"pictures of no size that is known, or more than {_pixels(limits)}")
    _check_pixels(codec.width, codec.height, limits)
    codec.options = {"max_pixels": str(int(limits.image_pixels))}
    next_s = 0.0
    for index, frame in enumerate(container.decode(stream)):
        # What says of itself when it is shown may be wrong.
        at_s = float(frame.time or 0.0)
        _check_length(max(at_s, index / MOST_FRAMES_A_SECOND), "VIDEO_S", limits.video_s)
        if at_s >= next_s:
            file = io.BytesIO()
            picture = frame.to_image()
            picture.thumbnail((MOST_FRAME_SIDE, MOST_FRAME_SIDE))
            picture.save(file, "JPEG")
            yield at_s, file.getvalue()
            next_s = at_s + 1 / FRAMES_A_SECOND


def _file_sound(data: bytes, limits: Limits, limit: str, longest_s: float) -> Samples:
    samples: list[Samples] = []
    seconds = 0.0
    try:
        with _open(data, limits) as container:
            if not container.streams.audio:
                raise ClientError("bad_request", "no sound in the file: expected wav, flac, mp3, m4a, ogg or webm")
            resampler = AudioResampler(format="fltp", rate=SOURCE_RATE_HZ)
            for frame in chain(container.decode(container.streams.audio[0]), [None]):
                # Before it is resampled: at 1 Hz, a small file is hours.
                seconds += frame.samples / frame.sample_rate if frame else 0.0
                _check_length(seconds, limit, longest_s)
                samples += [each.to_ndarray().mean(axis=0, dtype=np.float32) for each in resampler.resample(frame)]
    except (FFmpegError, ValueError, OSError) as error:
        # Of a file that breaks off, what was there counts.
        if not samples:
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


def _check_length(seconds: float, limit: str, longest_s: float) -> None:
    if seconds > longest_s:
        raise ClientError("too_large", f"{seconds:.1f} s or more: expected at most {limit}={longest_s:g}")


def _check_pixels(width: int, height: int, limits: Limits) -> None:
    if width * height > limits.image_pixels:
        raise ClientError("too_large", f"{width} × {height} pixels: expected at most {_pixels(limits)}")


def _pixels(limits: Limits) -> str:
    return f"IMAGE_MEGAPIXELS={limits.image_pixels / 1e6:g}"
