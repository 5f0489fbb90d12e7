"""The real voice activity model and the real recogniser, unpaced: short words are heard over a reply, noise is not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import soundfile

from dora_voice.audio import Samples
from dora_voice.messages import Audio, Control, Played, Text
from dora_voice.testing import Graph, silence
from dora_voice_stt import node as stt
from dora_voice_vad import node as vad

RECORDINGS = Path(__file__).parents[1] / "recordings"
EDGES = {"vad/hypothesis": "stt/hypothesis", "stt/speech": "vad/speech", "stt/control": "vad/control"}
LEVELS_DB = (-20, -13, -7, 0)
NOISES_DB = (None, 20, 10)
"""Speech over noise; None is no noise."""
OFFSETS = 20
ENOUGH = 0.95


@pytest.fixture(scope="module")
def recognizer() -> stt.Recognizer:
    return stt.load(stt.Config())


class Ears:
    """The nodes vad and stt, and a reply that is being played."""

    def __init__(self, recognizer: stt.Recognizer) -> None:
        stages = {
            "vad": (vad.build(vad.Config()), vad.PORTS),
            "stt": (stt.SttStage(recognizer, 30, hypothesis_ms=500), stt.PORTS),
        }
        self._graph = Graph(stages, EDGES)
        self._vad, self._stt = self._graph.drivers["vad"], self._graph.drivers["stt"]

    def play(self, segment_id: int) -> None:
        self._vad.feed(Played(port="played", samples=48_000, session_id="default", segment_id=segment_id))
        self._graph.run()

    def hear(self, sound: Samples, chunk_ms: int = 20) -> None:
        chunk = 16 * chunk_ms
        for begin in range(0, len(sound), chunk):
            self._vad.feed(Audio(port="audio", samples=sound[begin : begin + chunk], sample_rate=16_000))
            self._graph.advance(chunk_ms)

    def turns(self) -> list[str]:
        """What was said in the segments that were committed."""
        committed = [m.segment_id for m in self._vad.sent if isinstance(m, Control) and m.verb == "commit"]
        return [text for segment_id in committed if (text := self._text(segment_id))]

    def flushes(self) -> int:
        return sum(isinstance(m, Control) and m.verb == "flush" for m in self._vad.sent)

    def _text(self, segment_id: int | None) -> str:
        own = [m for m in self._stt.sent if isinstance(m, Text) and m.port == "text" and m.segment_id == segment_id]
        return "".join(fragment.text for fragment in own)


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def said(text: str, recording: str) -> Samples:
    samples, rate_hz = soundfile.read(RECORDINGS / f"{recording}.wav", dtype="float32")
    spoken = json.loads((RECORDINGS / f"{recording}.json").read_text())["speech"]
    (span,) = [part for part in spoken if part["text"] == text]
    return np.asarray(samples[round(span["start_s"] * rate_hz) : round(span["end_s"] * rate_hz)], np.float32)


def over_noise(sound: Samples, speech: Samples, noise_db: float | None, seed: int) -> Samples:
    """So many dB below the speech."""
    if noise_db is None:
        return sound
    level = np.sqrt(np.mean(np.square(speech))) * 10 ** (-noise_db / 20)
    return sound + np.random.default_rng(seed).normal(0, level, len(sound)).astype(np.float32)


def variations(speech: Samples, noises_db: Sequence[int | None] = NOISES_DB) -> Iterator[tuple[str, Samples]]:
    """Louder and softer, over more and less noise, moved against the model's windows."""
    mixes = list(product(LEVELS_DB, noises_db))
    for i in range(OFFSETS):
        level_db, noise_db = mixes[i % len(mixes)]
        scaled = speech * np.float32(10 ** (level_db / 20))
        sound = np.concatenate([silence(1_000 + 7 * i), scaled, silence(3_000)])
        yield f"{i}: {level_db} dB, noise {noise_db}", over_noise(sound, scaled, noise_db, seed=i)


def heard_over_a_reply(sound: Samples, recognizer: stt.Recognizer) -> tuple[int, list[str]]:
    """Flushes, and turns."""
    ears = Ears(recognizer)
    ears.play(segment_id=1)
    ears.hear(sound)
    return ears.flushes(), ears.turns()


@pytest.mark.parametrize("text", ["Yes.", "No.", "Stop."])
def test_a_short_word_interrupts_however_soft_and_noisy(text: str, recognizer: stt.Recognizer) -> None:
    missed = []
    for name, sound in variations(said(text, "short-answers")):
        flushes, turns = heard_over_a_reply(sound, recognizer)
        # In noise the recogniser adds words: "Stop it."
        if flushes != 1 or [words(text)[0] in words(turn) for turn in turns] != [True]:
            missed.append((name, flushes, turns))
    assert len(missed) <= (1 - ENOUGH) * OFFSETS, missed


def test_a_hum_interrupts_nothing_however_soft(recognizer: stt.Recognizer) -> None:
    wrong = []
    # In noise the recogniser hears words in it now and then: "Give him hunger."
    for name, sound in variations(said("Mm hmm.", "backchannel"), noises_db=(None,)):
        if (heard := heard_over_a_reply(sound, recognizer)) != (0, []):
            wrong.append((name, *heard))
    assert len(wrong) <= (1 - ENOUGH) * OFFSETS, wrong


@pytest.mark.parametrize("name", ["silence", "noise", "motor", "music"])
def test_ten_minutes_of_what_is_no_speech_are_no_turn(name: str, recognizer: stt.Recognizer) -> None:
    samples, _ = soundfile.read(RECORDINGS / f"{name}.wav", dtype="float32")
    ears = Ears(recognizer)
    ears.play(segment_id=1)
    ears.hear(np.resize(samples, 600 * 16_000), chunk_ms=200)
    assert ears.turns() == []
    assert ears.flushes() == 0
