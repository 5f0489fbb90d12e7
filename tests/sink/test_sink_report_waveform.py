"""Sounds: small enough for a picture, and where they belong on the time axis."""

import wave

import numpy as np
import pytest

from dora_voice_sink.record import ReportError
from dora_voice_sink.timeline import Piece
from dora_voice_sink.waveform import PEAKS_HZ, Peaks, aligned, end_of_voice_s, placed, read_wav, unheard


def write(path, samples, rate_hz=24_000, width=2, channels=1):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate_hz)
        file.writeframes(samples)
    return path


def peaks(loudness, begin_s=0.0):
    high = np.asarray(loudness, np.float32)
    return Peaks(-high, high, begin_s)


def noise(seconds, seed=0):
    return peaks(np.random.default_rng(seed).random(round(seconds * PEAKS_HZ)))


def test_of_every_5_ms_the_lowest_and_the_highest_sample_stay(tmp_path):
    samples = np.zeros(24_000, np.int16)
    samples[[130, 250]] = 16_384, -16_384
    found = read_wav(write(tmp_path / "a.wav", samples.tobytes()))
    assert len(found.low) == len(found.high) == PEAKS_HZ
    assert (found.high[1], found.low[2]) == (0.5, -0.5)
    assert np.count_nonzero(found.loudness) == 2


@pytest.mark.parametrize(("width", "dtype", "full"), [(1, np.uint8, 255), (2, "<i2", 2**15 - 1), (4, "<i4", 2**31 - 1)])
def test_usual_sample_widths_are_read(tmp_path, width, dtype, full):
    found = read_wav(write(tmp_path / "a.wav", np.full(4000, full, dtype).tobytes(), 8000, width))
    assert found.high == pytest.approx(1, abs=0.01)


def test_24_bits_in_two_channels_are_mixed(tmp_path):
    left_right = b"\x00\x00\x40" + b"\x00\x00\xc0"
    assert read_wav(write(tmp_path / "a.wav", left_right * 400, 16_000, 3, 2)).loudness.max() == 0
    assert read_wav(write(tmp_path / "b.wav", left_right[:3] * 800, 16_000, 3, 2)).high[0] == 0.5


@pytest.mark.parametrize("content", [b"", b"RIFF", b"not a sound at all, but long enough to be one"])
def test_what_is_no_wav_file_is_named_with_what_was_expected(tmp_path, content):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(ReportError, match=r"a\.wav: .*expected a PCM WAV file"):
        read_wav(tmp_path / "a.wav")


def test_a_file_without_samples_is_silence_of_no_length(tmp_path):
    assert len(read_wav(write(tmp_path / "a.wav", b"")).low) == 0


def test_columns_keep_the_loudest_of_their_time():
    sound = np.zeros(2 * PEAKS_HZ, np.float32)
    sound[50] = 0.7
    filled, low, high = peaks(sound, begin_s=10).columns(8, 14, 6)
    assert list(filled) == [2, 3]
    assert (low[0], high[0], high[1]) == (pytest.approx(-0.7), pytest.approx(0.7), 0)
    assert len(peaks(sound).columns(8, 14, 6)[0]) == 0


def test_a_reply_is_put_where_it_was_played_and_its_rest_where_it_would_have_gone_on():
    reply = peaks(np.arange(1000))
    pieces = (Piece(2.0, 0, 24_000), Piece(5.0, 24_000, 48_000))
    first, second = placed(reply, pieces)
    assert (first.begin_s, first.high[0], second.begin_s, second.high[0]) == (2.0, 0, 5.0, 200)
    rest = unheard(reply, pieces)
    assert (rest.begin_s, rest.high[0], len(rest.high)) == (6.0, 400, 600)


@pytest.mark.parametrize("began_s", [-1.5, 0.0, 3.2])
def test_the_speakers_recording_is_placed_by_what_it_sounds_like(began_s):
    first, second = noise(1, 1).at(4), noise(2, 2).at(7)
    speaker = np.zeros(12 * PEAKS_HZ, np.float32)
    for one in (first, second):
        begin = round((one.begin_s - began_s) * PEAKS_HZ)
        speaker[begin : begin + len(one.high)] = one.high
    assert aligned(peaks(speaker), [first, second]).begin_s == pytest.approx(began_s)


def test_a_silent_recording_or_one_of_nothing_is_not_placed():
    assert aligned(peaks(np.zeros(100)), [noise(1)]) is None
    assert aligned(noise(1), []) is None
    assert aligned(noise(1), [peaks(np.zeros(100))]) is None
    assert aligned(peaks([]), [noise(1)]) is None


def test_the_voice_ends_where_the_last_loud_moment_ends():
    loudness = np.full(600, 0.001)
    loudness[100:300] = 0.4
    assert end_of_voice_s(peaks(loudness, begin_s=1), 1.2, 4) == pytest.approx(2.5)
    assert end_of_voice_s(peaks(loudness), 2, 3) is None
    assert end_of_voice_s(peaks(loudness), 50, 60) is None
