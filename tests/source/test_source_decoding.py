"""Any usual audio file becomes 16 kHz mono, with the right length and the right sound in it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from av.audio.stream import AudioStream
from av.error import InvalidDataError
from av.video.stream import VideoStream

from dora_voice.config import SetupError
from dora_voice_source.decoding import decode

SECONDS = 2
RATES_HZ = [8_000, 16_000, 44_100, 48_000]


def chirp(rate_hz: int) -> np.ndarray:
    """From 200 to 2,000 Hz: no two moments sound alike."""
    t = np.arange(SECONDS * rate_hz) / rate_hz
    return (0.5 * np.sin(2 * np.pi * (200 * t + 450 * t**2))).astype(np.float32)


def decoded(path: Path) -> np.ndarray:
    return np.concatenate(list(decode(path)))


def assert_is_the_chirp(samples: np.ndarray, most_delay_samples: int = 0) -> None:
    expected = chirp(16_000)
    assert samples.dtype == np.float32
    assert abs(len(samples) - len(expected)) <= most_delay_samples + 1
    middle = slice(2_000, 28_000)
    best = max(
        np.corrcoef(samples[middle.start + delay : middle.stop + delay], expected[middle])[0, 1]
        for delay in range(-most_delay_samples, most_delay_samples + 1)
    )
    assert best > 0.98


def encode(path: Path, codec: str, rate_hz: int) -> None:
    """Writes the chirp with an encoder that soundfile doesn't have."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate_hz, layout="mono")
        assert isinstance(stream, AudioStream)
        frame = av.AudioFrame.from_ndarray(chirp(rate_hz)[None], format="fltp", layout="mono")
        frame.sample_rate = rate_hz
        resampler = av.AudioResampler(stream.format, "mono", rate_hz, frame_size=stream.frame_size or None)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))


@pytest.mark.parametrize("rate_hz", RATES_HZ)
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW"])
def test_wav_of_any_rate_and_sample_format(tmp_path: Path, rate_hz: int, subtype: str) -> None:
    soundfile.write(tmp_path / "a.wav", chirp(rate_hz), rate_hz, subtype)
    assert_is_the_chirp(decoded(tmp_path / "a.wav"))


def test_int16_at_16_khz_comes_through_unchanged(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).integers(-(2**15), 2**15, 20_000).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", samples, 16_000)
    np.testing.assert_array_equal(decoded(tmp_path / "a.wav") * 32_768, samples)


@pytest.mark.parametrize("name", ["a.flac", "a.aiff", "a.au"])
def test_other_formats(tmp_path: Path, name: str) -> None:
    soundfile.write(tmp_path / name, chirp(44_100), 44_100)
    assert_is_the_chirp(decoded(tmp_path / name))


def test_ogg_vorbis(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.ogg", chirp(44_100), 44_100)
    # Its first block, 3 ms, only starts the decoder up.
    assert_is_the_chirp(decoded(tmp_path / "a.ogg"), most_delay_samples=50)


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.mp3", "libmp3lame"), ("a.m4a", "aac"), ("a.opus", "libopus"), ("a.webm", "libopus"), ("a.mp4", "aac")],
)
def test_compressed_formats(tmp_path: Path, name: str, codec: str) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"this build of PyAV can't encode {codec}")
    encode(tmp_path / name, codec, 48_000)
    # Their encoders add padding, which not every container lets the decoder take away.
    assert_is_the_chirp(decoded(tmp_path / name), most_delay_samples=800)


@pytest.mark.parametrize("channels", [1, 2, 3, 6])
def test_channels_are_mixed_to_their_mean(tmp_path: Path, channels: int) -> None:
    only_the_last_speaks = np.zeros((SECONDS * 48_000, channels), np.float32)
    only_the_last_speaks[:, -1] = chirp(48_000)
    soundfile.write(tmp_path / "a.wav", only_the_last_speaks, 48_000, "FLOAT")
    samples = decoded(tmp_path / "a.wav")
    assert_is_the_chirp(samples)
    assert np.abs(samples[2_000:28_000]).max() == pytest.approx(0.5 / channels, rel=0.02)


def test_loud_stereo_does_not_get_louder(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.full((16_000, 2), 0.9, np.float32), 16_000, "FLOAT")
    np.testing.assert_allclose(decoded(tmp_path / "a.wav"), 0.9, atol=1e-6)


def test_a_long_file_is_decoded_bit_by_bit(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000 * 120, np.float32), 16_000)
    pieces = decode(tmp_path / "a.wav")
    assert isinstance(pieces, Iterator)
    assert max(len(piece) for piece in pieces) <= 16_000


def test_a_file_without_a_sample_is_an_empty_recording(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(0, np.float32), 16_000)
    assert list(decode(tmp_path / "a.wav")) == []


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"AUDIO_IN=.*gone\.wav: no such file: expected an audio file"):
        decode(tmp_path / "gone.wav")


def test_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="AUDIO_IN="):
        decode(tmp_path)


def test_what_is_no_audio_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_text("this is a letter to a friend\n" * 100)
    with pytest.raises(SetupError, match=r"AUDIO_IN=.*a\.wav: can't be decoded .*: expected an audio file"):
        decode(tmp_path / "a.wav")


def test_a_film_without_sound_is_refused_by_name(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        container.mux([*stream.encode(frame), *stream.encode(None)])
    with pytest.raises(SetupError, match=r"AUDIO_IN=.*a\.mp4: has no audio stream"):
        decode(tmp_path / "a.mp4")


def test_a_file_that_breaks_on_the_way_is_played_up_to_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, np.random.default_rng(0).uniform(-0.5, 0.5, 160_000), 16_000)
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(whole[:half] + b"\xff" * 40_000 + whole[half + 40_000 :])
    with caplog.at_level(logging.ERROR, "dora_voice.source"):
        samples = decoded(path)
    assert 40_000 < len(samples) <= 160_000


def test_a_decoder_that_gives_up_says_so_once_and_ends(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    from dora_voice_source import decoding

    def pieces() -> Iterator[np.ndarray]:
        yield np.zeros(8_000, np.float32)
        raise InvalidDataError(1, "broken frame")

    assert sum(len(piece) for piece in decoding._until_it_breaks(pieces(), tmp_path)) == 8_000
    assert "broken after about 0.5 s" in caplog.text
    assert len(caplog.records) == 1
