"""The audio of one segment: what waits, what was played of it, and where it was missing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dora_voice.audio import EMPTY, RateConverter, Samples
from dora_voice.messages import SPEAKER_RATE_HZ
from dora_voice_speaker.fade import FADE_SAMPLES


@dataclass(frozen=True, slots=True)
class Underruns:
    """Silences within a reply, because its audio came too late."""

    times: int = 0
    samples: int = 0

    def __add__(self, other: Underruns) -> Underruns:
        return Underruns(self.times + other.times, self.samples + other.samples)

    def after(self, silence: int) -> Underruns:
        """With one more of so many samples, if there was one."""
        return Underruns(self.times + 1, self.samples + silence) if silence else self


@dataclass(slots=True)
class Reply:
    is_held: bool
    """Speculative: it isn't played before its commit."""
    is_complete: bool = False
    played: int = 0
    reported: int = 0
    text_end: int | None = None
    """Where in the text that was played whole."""
    sent_text_end: int | None = None
    """Where in the text that came."""
    recent: Samples = field(default_factory=lambda: EMPTY)
    """The last samples that were played, as many as a fade takes."""
    queued: int = 0
    """Samples that have not been played yet."""
    starved: int = 0
    """For how many samples it has had nothing to play, while another reply waits."""
    _converter: RateConverter = field(default_factory=lambda: RateConverter(SPEAKER_RATE_HZ))
    _silence: int = 0
    """For how many samples it has had nothing to play after it had begun."""
    _underruns: Underruns = Underruns()
    _chunks: deque[tuple[Samples, int | None]] = field(default_factory=deque)
    _offset: int = 0
    """Samples already played of the first chunk."""

    def converted(self, samples: Samples, rate_hz: int, *, fin: bool) -> Samples:
        """The next samples at 24 kHz; `fin` with the last."""
        converted = self._converter.process(samples, rate_hz) if len(samples) else samples
        return np.concatenate([converted, self._converter.flush()]) if fin else converted

    def add(self, samples: Samples, text_end: int | None) -> None:
        """Queues samples; `text_end` is where the text is when they have been played."""
        if len(samples):
            self._chunks.append((samples, text_end))
            self.queued += len(samples)
        elif self._chunks:
            self._chunks[-1] = (self._chunks[-1][0], text_end)
        else:
            self.text_end = text_end

    def upcoming(self, samples: int) -> Samples:
        """The next `samples`, or as many as there are, without playing them."""
        parts, start = [EMPTY], self._offset
        for chunk, _ in self._chunks:
            parts.append(chunk[start : start + samples])
            start, samples = 0, samples - len(parts[-1])
            if samples == 0:
                break
        return np.concatenate(parts)

    def play(self, samples: int) -> Iterator[Samples]:
        """The next `samples`, or as many as there are, in parts; each counts as played when it is given out."""
        while self._chunks and samples:
            chunk, text_end = self._chunks[0]
            part = chunk[self._offset : self._offset + samples]
            samples -= len(part)
            self._move_on(part)
            if self._offset == len(chunk):
                self._chunks.popleft()
                self._offset = 0
                self.text_end = self.text_end if text_end is None else text_end
            yield part

    def lack(self, samples: int, is_waited_for: bool) -> None:
        """It had nothing to play for so long."""
        self.starved = self.starved + samples if is_waited_for else 0
        self._silence += samples if self.played else 0

    @property
    def underruns(self) -> Underruns:
        """Until now. The silence after the last sample of a complete reply is none."""
        return self._underruns if self.is_complete else self._underruns.after(self._silence)

    def _move_on(self, part: Samples) -> None:
        self._underruns = self._underruns.after(self._silence)
        self._silence = self.starved = 0
        self._offset += len(part)
        self.queued -= len(part)
        self.played += len(part)
        self.recent = np.concatenate([self.recent, part])[-FADE_SAMPLES:]
