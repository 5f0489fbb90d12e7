"""A recogniser that remembers what it was given, and the messages that a speaker makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dora_voice.audio import Samples
from dora_voice.messages import Audio, Control, Message, Segment, Text
from dora_voice_stt.recognizer import Transcript


class Listener:
    """Hears "hello", but nothing in silence; breaks when it is too loud. Its guesses are what the test says."""

    name = "listener"

    def __init__(self) -> None:
        self.heard: list[Samples] = []
        self.guessed: list[Samples] = []
        self.guesses: list[str | Transcript] = []
        self.guess_steps = 0
        self.is_broken = False

    def transcribe(self, samples: Samples, segment: Segment) -> Transcript:
        self.heard.append(samples)
        if self.is_broken or samples.max(initial=0) > 0.9:
            raise RuntimeError("too loud")
        return Transcript("hello", "en", average_log_probability=-2.0 if not samples.any() else -0.1)

    def guess(self, samples: Samples, segment: Segment) -> Iterator[Transcript | None]:
        self.guessed.append(samples)
        self.guess_steps += 1
        yield None
        self.guess_steps += 1
        if samples.max(initial=0) > 0.9:
            raise RuntimeError("too loud")
        guess = self.guesses.pop(0) if self.guesses else "hello"
        yield guess if isinstance(guess, Transcript) else Transcript(guess, "en")


def speech(samples: Samples, segment_id: int = 1, seq: int = 0, session_id: str = "a", **more: Any) -> Audio:
    return Audio(
        port="speech",
        samples=samples,
        sample_rate=16_000,
        session_id=session_id,
        segment_id=segment_id,
        seq=seq,
        **more,
    )


def control(verb: str, segment_id: int, session_id: str = "a") -> Control:
    return Control(port="control", verb=verb, session_id=session_id, segment_id=segment_id)


def texts(messages: list[Message], port: str = "text") -> list[Text]:
    return [message for message in messages if isinstance(message, Text) and message.port == port]
