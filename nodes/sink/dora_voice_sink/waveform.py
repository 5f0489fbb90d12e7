"""Sound as a picture needs it: the lowest and highest sample of every 5 ms, and where it lies on the time axis."""

from __future__ import annotations

import wave
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dora_voice.messages import SPEAKER_RATE_HZ
from dora_voice_sink.record import ReportError
from dora_voice_sink.timeline import Piece

PEAKS_HZ = 200
READ_S = 60
LONGEST_ALIGNED_S = 86_400
QUIET = 0.005
"""Peaks below this are no sound to look for."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Peaks:
    """`low` and `high` of every 1 / PEAKS_HZ s, in [-1, 1]; the first begins at `begin_s` on the axis."""

    low: Floats
    high: Floats
    begin_s: float = 0.0

    @property
    def end_s(self) -> float:
        return self.begin_s + len(self.low) / PEAKS_HZ

    @property
    def loudness(self) -> Floats:
        return np.maximum(self.high, -self.low)

    def at(self, begin_s: float) -> Peaks:
        return Peaks(self.low, self.high, begin_s)

    def between(self, begin_s: float, end_s: float) -> Peaks:
        """The part in this time, cut to whole peaks."""
        first = max(0, round((begin_s - self.begin_s) * PEAKS_HZ))
        end = max(first, round((end_s - self.begin_s) * PEAKS_HZ))
        return Peaks(self.low[first:end], self.high[first:end], self.begin_s + first / PEAKS_HZ)

    def columns(self, begin_s: float, end_s: float, count: int) -> tuple[NDArray[np.intp], Floats, Floats]:
        """This time in `count` columns: which of them have sound, with the lowest and highest of each."""
        part = self.between(begin_s, end_s)
        times_s = part.begin_s + np.arange(len(part.low)) / PEAKS_HZ
        column = np.clip(((times_s - begin_s) / (end_s - begin_s) * count).astype(np.intp), 0, count - 1)
        filled, starts = np.unique(column, return_index=True)
        if not len(filled):
            return filled, part.low, part.high
        return filled, np.minimum.reduceat(part.low, starts), np.maximum.reduceat(part.high, starts)


def read_wav(path: Path) -> Peaks:
    """Raises ReportError naming the file and what was expected. Channels are mixed."""
    try:
        with wave.open(str(path), "rb") as file:
            low_high = [_peaks(block, file.getframerate()) for block in _blocks(file)]
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror or error}") from error
    except (wave.Error, EOFError, ValueError, TypeError, RuntimeError) as error:
        reason = str(error) or "it ends within its header"
        raise ReportError(f"{path}: {reason}; expected a PCM WAV file of 8, 16, 24 or 32 bits") from error
    low, high = zip(*low_high, strict=True) if low_high else ((), ())
    empty = np.zeros(0, np.float32)
    return Peaks(np.concatenate([empty, *low]), np.concatenate([empty, *high]))


def _blocks(file: wave.Wave_read) -> Iterator[Floats]:
    """Mono, READ_S at a time, so that hours of sound need little memory. Half a frame at the end is left out."""
    width, channels = file.getsampwidth(), file.getnchannels()
    while data := file.readframes(READ_S * file.getframerate()):
        frames = len(data) // (width * channels)
        yield _to_float(data[: frames * width * channels], width).reshape(frames, channels).mean(axis=1)


def _to_float(data: bytes, width: int) -> Floats:
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / np.float32(128)
    if width == 3:
        padded = np.zeros((len(data) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return padded.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
    return np.frombuffer(data, f"<i{width}").astype(np.float32) / np.float32(2 ** (8 * width - 1))


def _peaks(samples: Floats, rate_hz: int) -> tuple[Floats, Floats]:
    count = -(-len(samples) * PEAKS_HZ // rate_hz)
    starts = np.arange(count) * rate_hz // PEAKS_HZ
    # Below 200 Hz a peak may have no sample of its own; reduceat then takes the one at its start.
    starts = np.minimum(starts, len(samples) - 1)
    return np.minimum.reduceat(samples, starts), np.maximum.reduceat(samples, starts)


def placed(reply: Peaks, pieces: Iterable[Piece]) -> Iterator[Peaks]:
    """The parts of a reply that were played, each where it was."""
    for piece in pieces:
        first, end = (sample * PEAKS_HZ // SPEAKER_RATE_HZ for sample in (piece.first_sample, piece.end_sample))
        yield Peaks(reply.low[first:end], reply.high[first:end], piece.begin_s)


def unheard(reply: Peaks, pieces: tuple[Piece, ...]) -> Peaks:
    """The rest of a reply, where it would have gone on."""
    last = pieces[-1]
    first = last.end_sample * PEAKS_HZ // SPEAKER_RATE_HZ
    return Peaks(reply.low[first:], reply.high[first:], last.end_s)


def aligned(speaker: Peaks, expected: list[Peaks]) -> Peaks | None:
    """The speaker's recording where it fits best to what the journal says was played; None if it fits nowhere.

    The journal doesn't say when the speaker began, so its loudness is slid along what is expected.
    """
    end_s = max((peaks.end_s for peaks in expected), default=0.0)
    if not 0 < end_s < LONGEST_ALIGNED_S or speaker.loudness.max(initial=0.0) < QUIET:
        return None
    wanted = np.zeros(int(end_s * PEAKS_HZ) + 1, np.float32)
    for peaks in expected:
        first = max(0, round(peaks.begin_s * PEAKS_HZ))
        loudness = peaks.loudness[: len(wanted) - first]
        wanted[first : first + len(loudness)] = loudness
    if wanted.max() < QUIET:
        return None
    size = 1 << (len(wanted) + len(speaker.low)).bit_length()
    spectrum = np.fft.rfft(wanted, size) * np.conj(np.fft.rfft(speaker.loudness, size))
    shift = int(np.argmax(np.fft.irfft(spectrum, size)))
    return speaker.at((shift if shift < len(wanted) else shift - size) / PEAKS_HZ)


def end_of_voice_s(user: Peaks, begin_s: float, end_s: float) -> float | None:
    """The last moment of this time as loud as speech: above a tenth of its loud parts. None if all is quiet."""
    part = user.between(begin_s, end_s)
    loudness = part.loudness
    loud = np.percentile(loudness, 90) if len(loudness) else 0.0
    voiced = np.flatnonzero(loudness > max(loud / 10, QUIET))
    return part.begin_s + (int(voiced[-1]) + 1) / PEAKS_HZ if len(voiced) else None
