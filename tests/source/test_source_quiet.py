"""Where utterances begin, by loudness alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from dora_voice.audio import Rechunker
from dora_voice.testing import silence, tone
from dora_voice_source.quiet import mark_onsets

ROOT = Path(__file__).parents[2]
RECORDINGS = {path.stem: path for path in (ROOT / "tests/recordings").glob("*.wav")}
RECORDINGS["three-questions"] = ROOT / "nodes/source/dora_voice_source/three-questions.wav"
SPOKEN = ["three-questions", "short-answers", "barge-in", "backchannel", "hesitation", "resumed"]


def onsets_s(samples: np.ndarray) -> list[float]:
    marked = mark_onsets(Rechunker(320).feed(samples.astype(np.float32)))
    return [number * 0.02 for number, (_, is_onset) in enumerate(marked) if is_onset]


@pytest.mark.parametrize("name", SPOKEN)
def test_every_utterance_of_a_recording_is_announced_shortly_before_it_begins(name: str) -> None:
    truth = json.loads((ROOT / f"tests/recordings/{name}.json").read_text())["speech"]
    found = onsets_s(soundfile.read(RECORDINGS[name], dtype="float32")[0])
    for spoken in truth:
        assert any(spoken["start_s"] - 0.2 <= onset <= spoken["start_s"] for onset in found)


@pytest.mark.parametrize("noise_level", [0.0, 0.001, 0.02])
def test_noise_in_the_background_does_not_hide_an_onset(noise_level: float) -> None:
    sound = np.concatenate([silence(1_000), tone(800), silence(1_000), tone(800)])
    sound = sound + np.random.default_rng(0).normal(0, noise_level, len(sound))
    assert onsets_s(sound) == pytest.approx([0.9, 2.7], abs=0.041)


def test_a_pause_shorter_than_300_ms_is_no_end() -> None:
    assert onsets_s(np.concatenate([silence(500), tone(400), silence(280), tone(400)])) == pytest.approx([0.4])


def test_a_recording_that_begins_with_speech() -> None:
    assert onsets_s(np.concatenate([tone(200), silence(600), tone(200)]))[-1] == pytest.approx(0.7)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 40)), max_size=12))
def test_marking_loses_and_changes_nothing(runs: list[tuple[float, int]]) -> None:
    chunks = [np.full(320, level, np.float32) for level, count in runs for _ in range(count)]
    assert [id(chunk) for chunk, _ in mark_onsets(chunks)] == [id(chunk) for chunk in chunks]
