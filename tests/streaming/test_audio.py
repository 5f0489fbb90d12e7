"""PCM keeps every sample, however it is cut into pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dora_voice.audio import Rechunker, Resampler, from_int16, resample, to_int16

PIECE_SIZES = st.lists(st.integers(0, 700), max_size=12)
RATES_HZ = st.sampled_from([8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000])


def numbered(count: int) -> np.ndarray:
    """Samples that can be told apart."""
    return np.arange(count, dtype=np.float32)


def noise(count: int) -> np.ndarray:
    return np.random.default_rng(count).uniform(-0.5, 0.5, count).astype(np.float32)


def cut(samples: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    return np.split(samples, np.cumsum(sizes[:-1])) if sizes else []


@given(sizes=PIECE_SIZES, chunk_samples=st.integers(1, 600))
def test_rechunking_keeps_every_sample_whatever_the_pieces(sizes: list[int], chunk_samples: int) -> None:
    samples = numbered(sum(sizes))
    rechunker = Rechunker(chunk_samples)

    chunks = [chunk for piece in cut(samples, sizes) for chunk in rechunker.feed(piece)]
    rest = rechunker.flush()

    assert all(len(chunk) == chunk_samples for chunk in chunks)
    assert len(rest) < chunk_samples
    np.testing.assert_array_equal(np.concatenate([*chunks, rest]), samples)
    assert rest.dtype == np.float32


@given(sizes=PIECE_SIZES, chunk_samples=st.integers(1, 600))
def test_a_chunk_comes_as_soon_as_its_last_sample_does(sizes: list[int], chunk_samples: int) -> None:
    rechunker, fed, received = Rechunker(chunk_samples), 0, 0
    for piece in cut(numbered(sum(sizes)), sizes):
        fed += len(piece)
        received += len(rechunker.feed(piece))
        assert received == fed // chunk_samples


def test_a_flushed_rechunker_starts_afresh() -> None:
    rechunker = Rechunker(4)
    rechunker.feed(numbered(3))
    rechunker.flush()
    assert rechunker.feed(numbered(3)) == []
    assert len(rechunker.flush()) == 3


@settings(deadline=None)
@given(sizes=PIECE_SIZES, from_hz=RATES_HZ, to_hz=RATES_HZ)
def test_resampling_in_pieces_equals_resampling_whole(sizes: list[int], from_hz: int, to_hz: int) -> None:
    samples = noise(sum(sizes))
    resampler = Resampler(from_hz, to_hz)

    pieces = [resampler.process(piece) for piece in cut(samples, sizes)]
    whole = resample(samples, from_hz, to_hz)

    in_pieces = np.concatenate([*pieces, resampler.flush()])
    assert in_pieces.dtype == np.float32
    assert len(in_pieces) == len(whole)
    np.testing.assert_allclose(in_pieces, whole, atol=1e-6)


@settings(deadline=None)
@given(count=st.integers(0, 5_000), from_hz=RATES_HZ, to_hz=RATES_HZ)
def test_resampling_keeps_the_duration(count: int, from_hz: int, to_hz: int) -> None:
    assert abs(len(resample(noise(count), from_hz, to_hz)) - count * to_hz / from_hz) <= 1


def test_equal_rates_leave_the_samples_alone() -> None:
    samples = noise(500)
    assert resample(samples, 16_000, 16_000).tobytes() == samples.tobytes()


def test_resampling_keeps_a_tone() -> None:
    def tone(rate_hz: int) -> np.ndarray:
        return np.sin(2 * np.pi * 440 * np.arange(rate_hz) / rate_hz).astype(np.float32)

    middle = slice(1_000, 15_000)
    np.testing.assert_allclose(resample(tone(48_000), 48_000, 16_000)[middle], tone(16_000)[middle], atol=1e-3)


def test_a_flushed_resampler_starts_afresh() -> None:
    resampler, samples = Resampler(48_000, 16_000), noise(4_800)
    first = np.concatenate([resampler.process(samples), resampler.flush()])
    second = np.concatenate([resampler.process(samples), resampler.flush()])
    np.testing.assert_array_equal(first, second)


@given(arrays(np.int16, st.integers(0, 200)))
def test_int16_survives_the_way_to_float_and_back(samples: np.ndarray) -> None:
    np.testing.assert_array_equal(to_int16(from_int16(samples)), samples)


@given(arrays(np.float32, st.integers(0, 200), elements=st.floats(-1, 1, width=32)))
def test_to_int16_is_off_by_at_most_one_step(samples: np.ndarray) -> None:
    assert np.all(np.abs(from_int16(to_int16(samples)) - samples) <= 1 / 32_768)


def test_to_int16_clips_what_is_too_loud() -> None:
    assert to_int16(np.array([-2, -1, 1, 2], dtype=np.float32)).tolist() == [-32_768, -32_768, 32_767, 32_767]


@pytest.mark.parametrize(("from_hz", "to_hz"), [(0, 16_000), (16_000, 0), (-8_000, 16_000)])
def test_an_impossible_rate_is_refused_by_name(from_hz: int, to_hz: int) -> None:
    with pytest.raises(ValueError, match=f"{from_hz} Hz to {to_hz} Hz"):
        Resampler(from_hz, to_hz)


def test_an_impossible_chunk_size_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="chunk_samples=0"):
        Rechunker(0)
