"""One session's ear: sound of any rate and chunk size in, windows and what is heard in them out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dora_voice.audio import EMPTY, RateConverter, Rechunker, Samples
from dora_voice.messages import SOURCE_RATE_HZ
from dora_voice_vad.endpointing import WINDOW_SAMPLES, Endpointer, Event, Limits

Detector = Callable[[Samples], float]
"""512 samples at 16 kHz → the probability that they hold speech. Carries the stream's state."""

Judge = Callable[[Samples], float]
"""The last part of an utterance, 16 kHz, at most `JUDGED_SAMPLES` → the probability that it is finished."""

JUDGED_SAMPLES = 8 * SOURCE_RATE_HZ


class Listener:
    """Keeps the last samples only: the pre-roll, what is held back while a split is being decided, what is judged."""

    def __init__(self, detect: Detector, limits: Limits, origin_ms: int, judged_samples: int = 0) -> None:
        """`origin_ms`: where in the source's audio this stream begins, after a restart for instance.

        `judged_samples`: so much of an utterance somebody wants to hear when it has probably ended.
        """
        self._detect = detect
        self._origin_ms = origin_ms
        self._judged_samples = judged_samples
        self._endpointer = Endpointer(limits)
        self._rechunker = Rechunker(WINDOW_SAMPLES)
        self._converter = RateConverter(SOURCE_RATE_HZ)
        self._recent, self._recent_from = EMPTY, 0

    @property
    def position(self) -> int:
        """How many samples of the stream were heard."""
        return self._recent_from + len(self._recent)

    def ms(self, position: int) -> int:
        """A position in the stream as a time in the source's audio."""
        return self._origin_ms + position * 1000 // SOURCE_RATE_HZ

    @property
    def is_open(self) -> bool:
        """Whether an utterance began that has not ended."""
        return self._endpointer.is_open

    @property
    def speech_ms(self) -> int:
        """How much of the open utterance was speech."""
        return self._endpointer.speech_samples * 1000 // SOURCE_RATE_HZ

    def windows(self, samples: Samples, rate_hz: int) -> list[Samples]:
        """The windows that these samples complete."""
        return self._rechunker.feed(self._converter.process(samples, rate_hz))

    def hear(self, window: Samples, end_silence_ms: int) -> list[Event]:
        """What this window brings about, if so much silence is a hard end.

        Raises what the detector raises, after giving up the open utterance.
        """
        self._remember(window)
        try:
            probability = self._detect(window)
        except Exception:
            self._endpointer.fail()
            raise
        return self._endpointer.hear(probability, end_silence_ms * SOURCE_RATE_HZ // 1000)

    def last_windows(self) -> list[Samples]:
        """The windows that complete when nothing more comes in."""
        return self._rechunker.feed(self._converter.flush())

    def finish(self) -> list[Event]:
        """The stream ended: an open utterance gets the rest that is no window, and ends."""
        rest = self._rechunker.flush()
        self._remember(rest)
        return self._endpointer.finish(len(rest))

    def go_on(self) -> None:
        """The open utterance goes on with the one before."""
        self._endpointer.go_on()

    def forget(self) -> None:
        """The open utterance was none."""
        self._endpointer.forget()

    def samples(self, begin: int, end: int) -> Samples:
        """A part of the stream, by position."""
        return self._recent[begin - self._recent_from : end - self._recent_from]

    def judged(self) -> Samples:
        """The last part of the open utterance."""
        return self.samples(max(self._endpointer.begin, self.position - self._judged_samples), self.position)

    def _remember(self, samples: Samples) -> None:
        oldest = max(self._recent_from, min(self._endpointer.oldest_needed, self.position - self._judged_samples))
        self._recent = np.concatenate([self._recent[oldest - self._recent_from :], samples])
        self._recent_from = oldest
