"""A recogniser without a model, for tests of whole graphs."""

from __future__ import annotations

from collections.abc import Iterator

from dora_voice.audio import Samples
from dora_voice.messages import SOURCE_RATE_HZ, Segment
from dora_voice_stt.recognizer import Transcript

WORDS_PER_S = 4


class FakeRecognizer:
    """Segment N of a session says the N-th of `texts`, from the start again after the last.

    A guess hears WORDS_PER_S of them so far. Without texts it says how long the utterance was.
    """

    def __init__(self, texts: list[str], language: str = "en") -> None:
        self.name = "fake"
        self._texts = texts
        self._language = language

    def transcribe(self, samples: Samples, segment: Segment) -> Transcript:
        if self._texts:
            return Transcript(self._texts[(segment.segment_id - 1) % len(self._texts)], self._language)
        return Transcript(f"{len(samples) / SOURCE_RATE_HZ:.1f} seconds", self._language)

    def guess(self, samples: Samples, segment: Segment) -> Iterator[Transcript | None]:
        yield None
        transcript = self.transcribe(samples, segment)
        words = transcript.text.split()
        heard = len(words) if not self._texts else len(samples) * WORDS_PER_S // SOURCE_RATE_HZ
        yield Transcript(" ".join(words[:heard]), transcript.language)
