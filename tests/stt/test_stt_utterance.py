"""An utterance's sound is put together exactly, at 16 kHz and not longer than is allowed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_voice.testing import tone
from dora_voice_stt.utterance import Utterance


@given(st.lists(st.integers(0, 400), max_size=20))
def test_pieces_make_up_the_whole(lengths: list[int]) -> None:
    sound = np.arange(sum(lengths), dtype=np.float32)
    utterance = Utterance(longest_s=30)
    for piece in np.split(sound, np.cumsum(lengths)):
        utterance.add(piece, 16_000)
    np.testing.assert_array_equal(utterance.complete(), sound)
    np.testing.assert_array_equal(utterance.complete(), sound)
    assert utterance.dropped_samples == 0


@given(st.lists(st.integers(0, 9_000), max_size=10))
def test_what_is_too_long_is_dropped_and_counted(lengths: list[int]) -> None:
    utterance = Utterance(longest_s=1)
    for length in lengths:
        utterance.add(np.ones(length, np.float32), 16_000)
    assert len(utterance.complete()) == min(sum(lengths), 16_000)
    assert utterance.dropped_samples == max(0, sum(lengths) - 16_000)


def test_the_sound_that_it_continues_comes_first() -> None:
    utterance = Utterance(longest_s=1, before=np.full(12_000, 0.5, np.float32))
    utterance.add(np.ones(8_000, np.float32), 16_000)
    sound = utterance.complete()
    assert (len(sound), sound[11_999], sound[12_000]) == (16_000, 0.5, 1)
    assert utterance.dropped_samples == 4_000


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 44_100, 48_000])
def test_another_sample_rate_is_converted(rate_hz: int) -> None:
    utterance = Utterance(longest_s=30)
    for piece in np.split(tone(1000, 440, rate_hz), 7 * [0] + [100, 101, 5_000]):
        utterance.add(piece, rate_hz)
    sound = utterance.complete()
    assert abs(len(sound) - 16_000) <= 1
    inner = slice(800, 15_200)
    np.testing.assert_allclose(sound[inner], tone(1000, 440)[: len(sound)][inner], atol=0.01)


def test_a_sample_rate_that_changes_is_refused() -> None:
    utterance = Utterance(longest_s=30)
    utterance.add(tone(20, rate_hz=48_000), 48_000)
    with pytest.raises(ValueError, match="sample_rate=16000: expected 48000"):
        utterance.add(tone(20), 16_000)
