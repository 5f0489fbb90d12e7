"""Files that clients send: decoded within limits, or refused with a reason; none opens anything else, or is a bomb."""

from __future__ import annotations

import base64
import io
import tracemalloc
import zlib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dora_voice_gateway.errors import ClientError
from dora_voice_gateway.media import Limits, check_picture, film_of, samples_of, sound_of
from dora_voice_session.schema import MediaPart

LIMITS = Limits(audio_s=10, video_s=5, image_pixels=1e6)
RNG = np.random.default_rng(1)
NOISE = (RNG.standard_normal(16_000) * 0.1).astype(np.float32)


def part(kind: str, data: bytes, **fields) -> MediaPart:
    return MediaPart(type=kind, data=base64.b64encode(data).decode(), **fields)


def sound_file(samples: np.ndarray, rate: int = 16_000, kind: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind)
    return file.getvalue()


def picture_file(width: int, height: int, kind: str = "PNG", mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, kind)
    return file.getvalue()


def film_file(
    seconds: float,
    size: int = 64,
    fps: int = 4,
    codec: str = "mpeg4",
    kind: str = "mov",
    pixels: str = "yuv420p",
    sound_s: float = 0.0,
) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = size, size, pixels
        voice = container.add_stream("aac", rate=16_000, layout="mono") if sound_s else None
        for _ in range(round(seconds * fps)):
            frame = av.VideoFrame(size, size, pixels)
            for plane in frame.planes:
                plane.update(bytes(plane.buffer_size))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if voice is not None:
            samples = np.resize(NOISE, (1, round(sound_s * 16_000)))
            sound = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            sound.sample_rate = 16_000
            container.mux(voice.encode(sound))
            container.mux(voice.encode())
    return file.getvalue()


def refused(read, kind: str, data: bytes, **fields) -> tuple[str, str]:
    """Code and text of the error, for which no more memory was taken than a small film needs."""
    tracemalloc.start()
    with pytest.raises(ClientError) as caught:
        read(part(kind, data, **fields), LIMITS)
    assert tracemalloc.get_traced_memory()[1] < 30e6
    tracemalloc.stop()
    return caught.value.code, str(caught.value)


def tried(read, kind: str, data: bytes):
    """What is read, or the error that a client is told; nothing else may come of it."""
    try:
        return read(part(kind, data), LIMITS)
    except ClientError as error:
        return error


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3", "OGG", "AIFF"])
@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_sound_of_any_usual_file_comes_as_16_khz_mono(kind: str, rate: int) -> None:
    stereo = np.stack([np.resize(NOISE, rate)] * 2, axis=1)
    samples = sound_of(part("audio", sound_file(stereo, rate, kind)), LIMITS)
    assert abs(len(samples) - 16_000) < 2_000
    assert samples.dtype == np.float32


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3", "OGG"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5, 0.9])
def test_a_sound_that_breaks_off_is_what_was_there_or_refused(kind: str, share: float) -> None:
    whole = sound_file(NOISE, kind=kind)
    samples = tried(sound_of, "audio", whole[: int(len(whole) * share)])
    if isinstance(samples, ClientError):
        assert samples.code == "bad_request"
        assert "expected a file such as wav" in str(samples)
    else:
        assert np.isfinite(samples).all()
        assert len(samples) <= 16_000 + 2_000


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG"])
def test_a_sound_that_is_too_long_is_refused_by_the_name_of_the_limit(kind: str) -> None:
    code, why = refused(sound_of, "audio", sound_file(np.zeros(16_000 * 11, np.float32), kind=kind))
    assert code == "too_large"
    assert why.endswith("AUDIO_S=10")


def test_bare_samples_that_are_too_long_are_refused_before_they_are_converted() -> None:
    code, why = refused(sound_of, "audio", bytes(4_000_000), format="s16le", sample_rate=8_000)
    assert (code, why) == ("too_large", "250.0 s or more: expected at most AUDIO_S=10")


def test_a_small_file_of_one_sample_a_second_is_no_gigabyte() -> None:
    quiet = sound_file(np.zeros(60_000, np.float32), 1, "FLAC")
    assert len(quiet) < 1_000
    assert refused(sound_of, "audio", quiet)[0] == "too_large"


@pytest.mark.parametrize(("data", "kind"), [(b"abc", "f32le"), (b"abc", "s16le"), (b"abcde", "f32le")])
def test_half_samples_are_refused(data: bytes, kind: str) -> None:
    with pytest.raises(ClientError, match=f"{len(data)} bytes: expected whole samples"):
        samples_of(data, kind)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_refused(value: float) -> None:
    with pytest.raises(ClientError, match="NaN or infinite"):
        samples_of(np.array([0, value], "<f4").tobytes(), "f32le")


def test_a_playlist_opens_no_file_and_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)

    (tmp_path / "secret.wav").write_bytes(sound_file(NOISE))
    monkeypatch.chdir(tmp_path)
    server = HTTPServer(("127.0.0.1", 0), Listener)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        head = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n"
        for playlist in (
            "ffconcat version 1.0\nfile secret.wav\n",
            f"ffconcat version 1.0\nfile http://127.0.0.1:{server.server_port}/a.wav\n",
            f"{head}http://127.0.0.1:{server.server_port}/a.ts\n#EXT-X-ENDLIST\n",
            f"{head}secret.wav\n#EXT-X-ENDLIST\n",
            "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 50000 RTP/AVP 0\n",
        ):
            for read in (sound_of, film_of):
                assert refused(read, "audio", playlist.encode())[0] == "bad_request"
    finally:
        server.shutdown()
        server.server_close()
    assert asked == []


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_a_picture_within_the_limit_is_taken(kind: str) -> None:
    check_picture(part("image", picture_file(1_000, 1_000, kind)), LIMITS)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_a_picture_of_too_many_pixels_is_refused_by_the_name_of_the_limit(kind: str) -> None:
    assert refused(check_picture, "image", picture_file(1_001, 1_000, kind)) == (
        "too_large",
        "1001 × 1000 pixels: expected at most IMAGE_MEGAPIXELS=1",
    )


def chunk(name: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4) + name + data + zlib.crc32(name + data).to_bytes(4)


def png(width: int, height: int, *chunks: bytes) -> bytes:
    head = width.to_bytes(4) + height.to_bytes(4) + bytes([8, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(chunks) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(50_000, 50_000), (2**31 - 1, 2**31 - 1), (2**31 - 1, 1)])
def test_a_few_bytes_that_are_gigabytes_of_pixels_are_refused(width: int, height: int) -> None:
    bomb = png(width, height, chunk(b"IDAT", zlib.compress(bytes(1_000_000))))
    code, why = refused(check_picture, "image", bomb)
    assert code == "too_large"
    assert why.endswith("IMAGE_MEGAPIXELS=1")


def test_words_in_a_picture_that_unpack_to_much_are_refused() -> None:
    words = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(90_000_000)))
    assert refused(check_picture, "image", png(8, 8, words))[0] == "bad_request"


@pytest.mark.parametrize("kind", ["EPS", "PDF", "TIFF", "ICO", "PPM"])
def test_other_kinds_of_pictures_are_refused(kind: str) -> None:
    code, why = refused(check_picture, "image", picture_file(32, 32, kind))
    assert code == "bad_request"
    assert "expected a file of PNG, JPEG" in why


@settings(max_examples=300)
@given(
    kind=st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP"]),
    cut=st.integers(0, 400),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8),
)
def test_damaged_pictures_are_taken_or_refused(kind: str, cut: int, changes: list) -> None:
    data = bytearray(picture_file(40, 30, kind)[: cut or None])
    for at, byte in changes:
        data[at % len(data)] = byte
    tried(check_picture, "image", bytes(data))


@settings(max_examples=150)
@given(
    cut=st.integers(0, 8_000),
    changes=st.lists(st.tuples(st.integers(0, 8_000), st.integers(0, 255)), max_size=8),
    read=st.sampled_from([sound_of, film_of]),
)
def test_damaged_films_are_taken_or_refused(cut: int, changes: list, read) -> None:
    data = bytearray(FILM[: cut or None])
    for at, byte in changes:
        data[at % len(data)] = byte
    tried(read, "video", bytes(data))


FILM = film_file(2, sound_s=2.0)


def test_of_a_film_one_picture_a_second_and_its_sound_are_taken() -> None:
    film = film_of(part("video", FILM), LIMITS)
    assert [at_s for at_s, _ in film.pictures] == [0.0, 1.0]
    assert all(Image.open(io.BytesIO(picture)).size == (64, 64) for _, picture in film.pictures)
    assert abs(len(film.samples) - 32_000) < 4_000


def test_a_film_that_is_too_long_is_refused_by_the_name_of_the_limit() -> None:
    for film in (film_file(6), film_file(2, sound_s=6)):
        code, why = refused(film_of, "video", film)
        assert code == "too_large"
        assert why.endswith("VIDEO_S=5")


def test_a_film_of_more_pictures_than_a_camera_makes_is_refused() -> None:
    """All of them in its first second, if it is to be believed."""
    assert refused(film_of, "video", film_file(1, size=16, fps=1_000))[0] == "too_large"


@pytest.mark.parametrize(
    ("codec", "kind", "pixels"), [("mpeg4", "mov", "yuv420p"), ("png", "mov", "gray"), ("ffv1", "matroska", "gray")]
)
def test_a_film_of_large_pictures_is_refused_before_one_is_decoded(codec: str, kind: str, pixels: str) -> None:
    code, why = refused(film_of, "video", film_file(1, size=4_000, fps=1, codec=codec, kind=kind, pixels=pixels))
    assert code == "too_large"
    assert why.endswith("IMAGE_MEGAPIXELS=1")


def test_what_has_no_picture_is_no_film_and_what_has_no_sound_no_recording() -> None:
    assert "no picture in it" in refused(film_of, "video", sound_file(NOISE))[1]
    assert "no sound in the file" in refused(sound_of, "audio", film_file(1))[1]
    for read in (sound_of, film_of):
        for data in (b"", b"anything", bytes(100_000), RNG.bytes(10_000)):
            assert refused(read, "video", data)[0] == "bad_request"
