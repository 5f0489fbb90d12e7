"""The real model on every recording: how many utterances, and whether they hold all that was said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from dora_voice.messages import Audio, Control, Message
from dora_voice.testing import Driver
from dora_voice_vad.node import PORTS, Config, build

ROOT = Path(__file__).parents[2]
RECORDINGS = {path.stem: path for path in (ROOT / "tests/recordings").glob("*.wav")}
RECORDINGS["three-questions"] = ROOT / "nodes/source/dora_voice_source/three-questions.wav"
UTTERANCES = {
    "silence": 0,
    "noise": 0,
    "motor": 0,
    "music": 0,
    "three-questions": 3,
    "short-answers": 4,
    "barge-in": 2,
    "backchannel": 2,
    # A pause within a sentence, of 0.6 and 0.45 s, that the end silence outlasts.
    "hesitation": 1,
    "resumed": 1,
}


def samples_of(name: str) -> np.ndarray:
    return soundfile.read(RECORDINGS[name], dtype="float32")[0]


def listen(name: str) -> list[Message]:
    samples, driver = samples_of(name), Driver(build(Config()), PORTS)
    for i in range(0, len(samples), 320):
        driver.feed(Audio(port="audio", samples=samples[i : i + 320], sample_rate=16_000))
    driver.run()
    driver.end_inputs()
    return driver.sent


def committed(sent: list[Message]) -> list[int | None]:
    return [m.segment_id for m in sent if isinstance(m, Control) and m.verb == "commit"]


def fragments_of(sent: list[Message], segment_id: int | None) -> list[Audio]:
    """Of a segment, after those of the segment that it continues."""
    own = [m for m in sent if isinstance(m, Audio) and m.segment_id == segment_id and not m.finish]
    return (fragments_of(sent, own[0].continues) if own[0].continues else []) + own


@pytest.mark.parametrize("name", sorted(RECORDINGS))
def test_a_recording_holds_as_many_utterances_as_were_spoken_and_all_of_them(name: str) -> None:
    source, sent = samples_of(name), listen(name)
    truth = json.loads((ROOT / f"tests/recordings/{name}.json").read_text())["speech"]
    segments = committed(sent)
    assert len(segments) == UTTERANCES[name]

    spans = []
    for segment_id in segments:
        fragments = fragments_of(sent, segment_id)
        samples = np.concatenate([fragment.samples for fragment in fragments])
        assert fragments[0].audio_ms is not None
        begin = fragments[0].audio_ms * 16
        np.testing.assert_array_equal(samples, source[begin : begin + len(samples)])
        spans.append((begin / 16_000, (begin + len(samples)) / 16_000))
    for spoken in truth:
        assert any(begin < spoken["start_s"] and spoken["end_s"] < end for begin, end in spans)


def test_the_old_reply_is_held_as_soon_as_the_user_barges_in_and_flushed_a_little_later() -> None:
    at_ms = {m.verb: m.audio_ms for m in listen("barge-in") if isinstance(m, Control) and m.segment_id in (1, 2)}
    assert at_ms["pause"] is not None
    assert at_ms["flush"] is not None
    assert 9_691 < at_ms["pause"] < 9_691 + 150
    assert at_ms["pause"] < at_ms["flush"] < 9_691 + 1_500


@pytest.mark.parametrize("name", ["silence", "noise", "motor", "music"])
def test_what_is_no_speech_does_not_even_raise_a_false_alarm(name: str) -> None:
    assert not any(isinstance(m, Control) for m in listen(name))
