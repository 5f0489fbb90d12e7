"""What a user does in a conversation, as a script of sound, and models that understand it and take their time.

Each utterance has levels of its own, which rise a little, so that a recording tells what was said in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import Any

import numpy as np
from conversation.network import Effort

from dora_voice.audio import Samples
from dora_voice.messages import SPEAKER_RATE_HZ, Segment
from dora_voice_llm.fake_model import FakeModel
from dora_voice_stt.recognizer import Transcript
from dora_voice_tts.voice import Speech

WINDOW_MS = 32
WINDOW_SAMPLES = 512
RISE = 0.4
"""Of the level within an utterance. The next number is 1 higher."""
SAMPLES_PER_CHARACTER = SPEAKER_RATE_HZ * 40 // 1000
"""Two chunks: a clause isn't filled up with silence."""
STORY = "Once upon a time there was a robot, which lived by the sea. It lit the lamp, and all ships came home."
TEXTS = {
    "question": "Question {}?",
    "story": "Tell story {}.",
    "unfinished": "Well number {} and",
    "hum": "Mm-hmm.",
    "echo": "You said.",
    "click": "",
    "noise": "",
}
MOMENTS = (
    *("start", "pause", "resume", "flush", "drop", "commit", "soft end", "guessed", "transcribed"),
    *("first token", "last token", "first audio", "last audio", "heard", "almost over", "over"),
)
"""What an utterance may wait for."""
RACY_MOMENTS = ("soft end", "commit", "drop", "resume", "flush")
"""Where most depends on who comes first."""
MEANT = frozenset({"question", "story", "unfinished"})


@dataclass(frozen=True, slots=True)
class Utterance:
    """`after`: one of MOMENTS, or nothing, and so much silence more. `restarts`: the source does, before that."""

    number: int
    kind: str
    windows: int
    after: str
    silence_windows: int
    restarts: bool = False

    @property
    def text(self) -> str:
        return TEXTS[self.kind].format(self.number)

    @property
    def levels(self) -> list[float]:
        """One for each window."""
        return [0.2 + (self.number + RISE * i / self.windows) / 100 for i in range(self.windows)]

    def __str__(self) -> str:
        when = "source restarts, " * self.restarts + f"{self.after} + " * bool(self.after)
        return f"{when}{self.silence_windows * WINDOW_MS} ms: {self.kind} {self.number}, {self.windows * WINDOW_MS} ms"


def schedule(random: Random) -> list[Utterance]:
    """What the user says, and when: mostly just after something happened, or after a silence that may matter."""
    return [_utterance(random, number) for number in range(1, random.randint(1, 6) + 1)]


def _utterance(random: Random, number: int) -> Utterance:
    kind = "question" if number == 1 else random.choice(["question", "question", "story", "click", *TEXTS])
    ms = {"click": (32, 230), "hum": (260, 700), "noise": (260, 900)}.get(kind, (260, 1400))
    after = random.choice([*MOMENTS, *RACY_MOMENTS * 2]) if number > 1 and random.random() < 0.65 else ""
    exactly, about = [(0, 0), (0, 100), (0, 300)], [(32, 160), (160, 450), (450, 1200), (0, 2500)]
    silence_ms = random.choice(exactly if after else about) if number > 1 else (0, 500)
    windows, silence_windows = (max(0, round(random.uniform(*each) / WINDOW_MS)) for each in (ms, silence_ms))
    return Utterance(number, kind, max(1, windows), after, silence_windows, restarts=random.random() < 0.1)


def loud_is_speech(window: Samples) -> float:
    return float(np.abs(window).max() > 0.1)


class SlowRecognizer:
    """Says what the utterances in a recording say, as far as they are in it."""

    name = "fake"

    def __init__(self, utterances: Sequence[Utterance], effort: Effort) -> None:
        self._utterances = {each.number: each for each in utterances}
        self._effort = effort

    def transcribe(self, samples: Samples, segment: Segment) -> Transcript:
        self._effort.spend(50, 400)
        return Transcript(self._text(samples), "en")

    def guess(self, samples: Samples, segment: Segment) -> Iterator[Transcript | None]:
        for _ in range(3):
            self._effort.spend(10, 50)
            yield None
        yield Transcript(self._text(samples), "en")

    def _text(self, samples: Samples) -> str:
        said = []
        for number, begin, last in spoken(samples):
            utterance = self._utterances[number]
            words = utterance.text.split()
            windows = round(begin * utterance.windows), round(last * utterance.windows) + 1
            begin_word, end_word = (round(len(words) * window / utterance.windows) for window in windows)
            said += words[begin_word:end_word]
        return " ".join(said)


def spoken(samples: Samples) -> list[tuple[int, float, float]]:
    """The utterances in a recording: their numbers, and where in each its first and last window are, from 0 to 1."""
    levels = (samples[WINDOW_SAMPLES // 2 :: WINDOW_SAMPLES].astype(float) - 0.2) * 100
    runs = [(number, list(run)) for number, run in groupby((level for level in levels if level > 0), key=round)]
    return [(number, (run[0] - number) / RISE, (run[-1] - number) / RISE) for number, run in runs]


class SlowModel(FakeModel):
    def __init__(self, effort: Effort) -> None:
        super().__init__()
        self._effort = effort

    def extend(self, cache: list[int], tokens: Sequence[int]) -> Any:
        self._effort.spend(5, 30)
        return super().extend(cache, tokens)

    def answer(self, user: str) -> str:
        return answer(user)


def answer(user: str) -> str:
    return f"{STORY} So much for {user}" if "story" in user else f"You said: {user}"


class SlowVoice:
    """Its sound has a level of its own for each segment, so that what is played tells whose it is.

    It may be as slow as a model that hardly keeps up.
    """

    name = "fake"
    rate_hz = SPEAKER_RATE_HZ

    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self.segment_id = 0

    def speak(self, text: str, begun: int | None = None) -> Speech:
        return self._say(len(text) - (begun or 0))

    def begin(self, words: str, next_word: str, begun: int | None) -> tuple[Speech, int]:
        return self._say(len(words) - (begun or 0)), len(words)

    def _say(self, characters: int) -> Speech:
        self._effort.spend(10, 100)
        return Speech(characters * SAMPLES_PER_CHARACTER, self._pieces(characters, reply_level(self.segment_id)))

    def _pieces(self, count: int, level: np.float32) -> Iterator[Samples]:
        for _ in range(count):
            self._effort.spend(0, 20)
            yield np.full(SAMPLES_PER_CHARACTER, level)


def reply_level(segment_id: int) -> np.float32:
    """Irregular, so that no fade of one passes another."""
    return np.float32(0.3 + 0.6 * (segment_id * 0.6180339887 % 1))


def words(text: str) -> str:
    """Without what isn't spoken at the end."""
    return re.sub(r"\W+$", "", text)
