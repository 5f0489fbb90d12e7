"""Audio files of any usual format, decoded bit by bit to 16 kHz mono."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import av
import numpy as np
from av.audio.resampler import AudioResampler
from av.error import FFmpegError

from dora_voice.audio import Samples
from dora_voice.config import SetupError
from dora_voice.messages import SOURCE_RATE_HZ

log = logging.getLogger("dora_voice.source")

EXPECTED = "an audio file, such as wav, flac, mp3, m4a, ogg, opus or webm"


def decode(path: Path) -> Iterator[Samples]:
    """Pieces of any size, 16 kHz mono, decoded as they are asked for.

    Raises SetupError at once if the file can't be opened or nothing of it can be decoded. A file
    that breaks later ends there, with a line in the log.
    """
    if not path.is_file():
        raise SetupError(f"AUDIO_IN={path}: no such file: expected {EXPECTED}")
    pieces = _pieces(path)
    try:
        first = next(pieces, None)
    except (FFmpegError, ValueError, OSError) as error:
        raise SetupError(f"AUDIO_IN={path}: can't be decoded ({error}): expected {EXPECTED}") from error
    return chain([] if first is None else [first], _until_it_breaks(pieces, path))


def _pieces(path: Path) -> Iterator[Samples]:
    with av.open(str(path)) as container:
        if not container.streams.audio:
            raise SetupError(f"AUDIO_IN={path}: has no audio stream: expected {EXPECTED}")
        # Mixed down here: swresample's own mix of float channels gets louder than its inputs.
        resampler = AudioResampler(format="fltp", rate=SOURCE_RATE_HZ)
        for frame in chain(container.decode(container.streams.audio[0]), [None]):
            for resampled in resampler.resample(frame):
                yield resampled.to_ndarray().mean(axis=0, dtype=np.float32)


def _until_it_breaks(pieces: Iterator[Samples], path: Path) -> Iterator[Samples]:
    decoded_samples = 0
    try:
        for piece in pieces:
            decoded_samples += len(piece)
            yield piece
    except (FFmpegError, ValueError, OSError) as error:
        log.error("AUDIO_IN=%s: broken after about %.1f s (%s)", path, decoded_samples / SOURCE_RATE_HZ, error)
