"""The page as a browser shows it."""

import json
import shutil
import subprocess
import wave

import numpy as np
import pytest
from matplotlib.image import imread

from dora_voice_sink.palette import DARK, LIGHT
from dora_voice_sink.report import main

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
RATE_HZ = 24_000
STORY = "Once upon a time there was a robot & a <cook>."


def chromium(*options):
    """Runs it without a window. A test that needs it fails where it is missing: a skipped one would tell nothing."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.fail(f"none of {', '.join(BROWSERS)} is installed. Run: sudo apt-get install chromium")
    # As root, as in a container, it refuses its sandbox; and it opens nothing here but our own page.
    fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    return subprocess.run([program, *fixed, *options], capture_output=True, text=True, timeout=120, check=True).stdout


def sound(path, samples):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(samples.tobytes())


@pytest.fixture
def page(tmp_path):
    """Of a conversation in which the user interrupts a story after two of its four seconds."""

    def event(t_s, event, segment_id, **values):
        return {"t_s": t_s, "session_id": "default", "segment_id": segment_id, "event": event, **values}

    def played(segment_id, begin_s, tenths, text_end):
        last = tenths - 1
        return [
            event(
                begin_s + (tenth + 1) / 10,
                "played",
                segment_id,
                samples=2400 * (tenth + 1),
                text_end=text_end * (tenth + 1) // tenths,
                fin=tenth == last,
            )
            for tenth in range(tenths)
        ]

    events = [
        event(0.9, "start", 1, audio_ms=500),
        event(2.5, "commit", 1, audio_ms=2500),
        event(2.6, "hypothesis", 1, text="A story, please."),
        event(2.7, "turn", 1, role="user", text="A story, please."),
        *played(1, 4.0, 20, 16),
        event(5.7, "start", 2, audio_ms=5400),
        event(5.99, "flush", 2, audio_ms=5990),
        event(6.01, "turn", 1, role="assistant", text=STORY, heard=STORY[:16]),
        event(7.5, "commit", 2, audio_ms=7500),
        event(7.6, "turn", 2, role="user", text="Stop!"),
        *played(2, 8.0, 10, 3),
        event(9.1, "turn", 2, role="assistant", text="Ok."),
    ]
    events.sort(key=lambda one: one["t_s"])
    (tmp_path / "conversation.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    noise = np.random.default_rng(0).integers(-9000, 9000, 4 * RATE_HZ, dtype=np.int16)
    sound(tmp_path / "reply-default-1.wav", noise)
    sound(tmp_path / "reply-default-2.wav", noise[::-1][:RATE_HZ])
    silence = np.zeros(RATE_HZ, np.int16)
    heard = [silence, silence, silence, noise[: 2 * RATE_HZ], silence, silence, noise[::-1][:RATE_HZ]]
    sound(tmp_path / "speaker.wav", np.concatenate(heard))
    assert main([str(tmp_path)]) == 0
    return tmp_path / "report.html"


def share(picture, colour):
    """The share of pixels of this colour."""
    wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return float((np.abs(picture[..., :3] - wanted) < 0.012).all(axis=-1).mean())


def test_the_browser_reads_the_interrupted_conversation_as_it_was(page):
    shown = chromium("--dump-dom", page.as_uri())
    assert '<td class="text" dir="auto">Once upon a time<s> there was a robot &amp; a &lt;cook&gt;.</s></td>' in shown
    for text in ("A story, please.", "Stop!", ">interrupts</text>", ">interrupted<", ">after 590 ms<", ">1.5 s<"):
        assert text in shown
    assert shown.count("<svg ") == 1


@pytest.mark.parametrize(("scheme", "colours"), [(1, LIGHT), (0, DARK)], ids=["light", "dark"])
def test_the_browser_shows_it_in_light_and_in_dark(page, scheme, colours):
    path = page.with_name("shown.png")
    size = "--window-size=1200,1000"
    chromium(size, f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={path}", page.as_uri())
    picture = imread(path)
    assert picture.shape[:2] == (1000, 1200)
    assert share(picture, colours["ground"]) > 0.1
    assert share(picture, colours["card"]) > 0.3
    for name in ("user", "reply", "alarm"):
        assert share(picture, colours[name]) > 0.0001, name
