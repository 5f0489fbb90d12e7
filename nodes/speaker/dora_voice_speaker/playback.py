"""What a speaker does with the replies of one session, on a clock of samples. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dora_voice.messages import SPEAKER_RATE_HZ

REPORT_SAMPLES = SPEAKER_RATE_HZ // 10
LONGEST_STARVING = 10 * SPEAKER_RATE_HZ
MOST_PAUSES = 64


@dataclass(frozen=True, slots=True)
class Report:
    """How much of a segment was heard. `is_last` when it ended or was cut."""

    segment_id: int
    samples: int
    text_end: int | None
    is_last: bool = False


@dataclass(slots=True)
class _Reply:
    """The audio of one segment, and how far it has been played."""

    is_held: bool
    chunks: deque[tuple[NDArray[np.float32], int | None]] = field(default_factory=deque)
    is_complete: bool = False
    starved_samples: int = 0
    """How long it has been silent because its audio didn't come, while another reply waits."""
    offset: int = 0
    """Samples already played of the first chunk."""
    played: int = 0
    reported: int = 0
    text_end: int | None = None

    @property
    def queued(self) -> int:
        return sum(len(samples) for samples, _ in self.chunks) - self.offset


class Playback:
    """Replies are played one after the other. Cuts and reports come out of `take_reports`."""

    def __init__(self, longest_pause_samples: int, longest_queue_samples: int) -> None:
        self.dropped_samples = 0
        self._longest_pause = longest_pause_samples
        self._longest_queue = longest_queue_samples
        self._replies: dict[int, _Reply] = {}
        self._pauses: dict[int, int] = {}
        """Held segments, also those whose audio has not come yet, and for how many samples."""
        self._reports: list[Report] = []

    def add(
        self, segment_id: int, samples: NDArray[np.float32], text_end: int | None, *, fin: bool, speculative: bool
    ) -> None:
        """Queues 24 kHz samples of a segment; what doesn't fit in the queue is counted in `dropped_samples`."""
        reply = self._replies.setdefault(segment_id, _Reply(is_held=speculative))
        reply.is_complete |= fin
        if text_end is not None and reply.text_end is None:
            # Until its first piece is played whole, nothing of the text was heard.
            reply.text_end = 0
        if not speculative:
            reply.is_held = False
        if self.queued + len(samples) > self._longest_queue:
            self.dropped_samples += len(samples)
        elif len(samples):
            reply.chunks.append((samples, text_end))
        elif reply.chunks:
            reply.chunks[-1] = (reply.chunks[-1][0], text_end)
        else:
            reply.text_end = text_end

    def commit(self, segment_id: int) -> None:
        if reply := self._replies.get(segment_id):
            reply.is_held = False

    def pause(self, segment_id: int) -> None:
        """Holds a segment; it goes on by itself after the longest pause."""
        self._pauses[segment_id] = 0
        if len(self._pauses) > MOST_PAUSES:
            del self._pauses[min(self._pauses)]

    def resume(self, segment_id: int) -> None:
        """Goes on at the very sample where it held."""
        self._pauses.pop(segment_id, None)

    def flush(self, segment_id: int) -> None:
        """Cuts everything older."""
        for older in [known for known in self._replies if known < segment_id]:
            self.drop(older)

    def drop(self, segment_id: int) -> None:
        """Cuts exactly this segment."""
        if segment_id in self._replies:
            self._end(segment_id)

    def complete(self) -> None:
        """Nothing more will come: no audio, and no commit for what is held."""
        for segment_id, reply in list(self._replies.items()):
            reply.is_complete = True
            if reply.is_held:
                self._end(segment_id)

    @property
    def is_busy(self) -> bool:
        """Whether there is a reply that has not been played to its end."""
        return bool(self._replies)

    @property
    def queued(self) -> int:
        """Samples that have not been played yet."""
        return sum(reply.queued for reply in self._replies.values())

    @property
    def ready(self) -> int:
        """Samples that nothing holds back."""
        ready = 0
        for segment_id, reply in self._replies.items():
            if reply.is_held or segment_id in self._pauses:
                break
            ready += reply.queued
            if not reply.is_complete:
                break
        return ready

    def play(self, samples: int) -> NDArray[np.float32]:
        """The next `samples` of sound, shape (samples,); silence where there is nothing to play."""
        sound = np.zeros(samples, np.float32)
        position = 0
        while current := next(iter(self._replies.items()), None):
            segment_id, reply = current
            if reply.is_held or self._is_paused(segment_id, samples - position):
                break
            for part in self._play_from(segment_id, reply, samples - position):
                sound[position : position + len(part)] = part
                position += len(part)
            if reply.chunks or not (reply.is_complete or self._is_starved(reply, samples - position)):
                break
            self._end(segment_id)
        return sound

    def take_reports(self) -> list[Report]:
        """What there is to report since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def _is_paused(self, segment_id: int, samples: int) -> bool:
        if segment_id not in self._pauses:
            return False
        self._pauses[segment_id] += samples
        if self._pauses[segment_id] > self._longest_pause:
            del self._pauses[segment_id]
        return segment_id in self._pauses

    def _is_starved(self, reply: _Reply, samples: int) -> bool:
        """Whether a reply whose end never came has held up the next one for too long."""
        reply.starved_samples = reply.starved_samples + samples if len(self._replies) > 1 else 0
        return reply.starved_samples > LONGEST_STARVING

    def _play_from(self, segment_id: int, reply: _Reply, samples: int) -> Iterator[NDArray[np.float32]]:
        while reply.chunks and samples:
            chunk, text_end = reply.chunks[0]
            part = chunk[reply.offset : reply.offset + samples]
            reply.offset += len(part)
            reply.starved_samples = 0
            reply.played += len(part)
            samples -= len(part)
            yield part
            if reply.offset == len(chunk):
                reply.chunks.popleft()
                reply.offset = 0
                reply.text_end = reply.text_end if text_end is None else text_end
            if reply.played - reply.reported >= REPORT_SAMPLES:
                reply.reported = reply.played
                self._reports.append(Report(segment_id, reply.played, reply.text_end))

    def _end(self, segment_id: int) -> None:
        reply = self._replies.pop(segment_id)
        self._pauses.pop(segment_id, None)
        self._reports.append(Report(segment_id, reply.played, reply.text_end, is_last=True))
