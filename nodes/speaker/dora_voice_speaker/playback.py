"""What a speaker does with the replies of one session, on a clock of samples. Pure.

A reply that is paused or cut fades out: a copy of what would have come next is played, fading, and counts as not
played. When it goes on, what was played last is repeated, fading in. So every sample of a reply is played at its
full level once, whatever the pauses, and `played` counts these alone.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dora_voice.audio import EMPTY, Samples
from dora_voice.messages import SPEAKER_RATE_HZ
from dora_voice_speaker.fade import FADE_SAMPLES, faded_in, faded_out
from dora_voice_speaker.reply import Reply, Underruns

REPORT_SAMPLES = SPEAKER_RATE_HZ // 10
LONGEST_STARVING = 10 * SPEAKER_RATE_HZ
MOST_PAUSES = 64
MOST_REPLIES = 256
"""That wait at once."""
MOST_REMEMBERED = 1024
"""Replies that are over, kept so that what comes late of them is recognised."""


@dataclass(frozen=True, slots=True)
class Report:
    """How much of a segment was heard. `is_last` when it ended or was cut; then `underruns` are known."""

    segment_id: int
    samples: int
    text_end: int | None
    is_last: bool = False
    underruns: Underruns = Underruns()


class Playback:
    """Replies are played one after the other. Cuts and reports come out of `next_report`."""

    def __init__(self, longest_pause_samples: int, longest_queue_samples: int) -> None:
        self.dropped: Counter[str] = Counter()
        """Samples that are not played, by the reason."""
        self.underruns = Underruns()
        """Of the replies that have ended."""
        self._longest_pause = longest_pause_samples
        self._longest_queue = longest_queue_samples
        self._replies: dict[int, Reply] = {}
        self._over: OrderedDict[int, None] = OrderedDict()
        """Replies that have ended, been cut or given up."""
        self._pauses: dict[int, int] = {}
        """Held segments, also those whose audio has not come yet, and for how many samples."""
        self._fade: Samples = EMPTY
        """Is played before anything else."""
        self._sounding: int | None = None
        """The segment that is heard at its full level now, or when the fade is over."""
        self._reports: deque[Report] = deque()

    def add(
        self,
        segment_id: int,
        samples: Samples,
        text_end: int | None,
        *,
        rate_hz: int = SPEAKER_RATE_HZ,
        fin: bool,
        speculative: bool,
    ) -> None:
        """Queues samples of a segment. What comes too late is counted in `dropped`, as what doesn't fit and ends it."""
        if segment_id in self._over:
            self.dropped["the reply is over"] += len(samples)
            return
        reply = self._replies.setdefault(segment_id, Reply(is_held=speculative))
        if reply.is_complete:
            self.dropped["the reply is over"] += len(samples)
            return
        reply.is_complete = fin
        if text_end is not None and reply.text_end is None:
            # Until its first piece is played whole, nothing of the text was heard.
            reply.text_end = 0
        # What the converter still has at the end belongs to the text that was told last.
        reply.sent_text_end = reply.sent_text_end if text_end is None else text_end
        if not speculative:
            reply.is_held = False
        came, samples = len(samples), reply.converted(samples, rate_hz, fin=fin)
        if len(self._replies) > MOST_REPLIES:
            self.dropped[f"{MOST_REPLIES} replies wait"] += len(samples)
            self._end(segment_id)
        elif self.queued + len(samples) > self._longest_queue:
            self.dropped["QUEUE_MAX_S is reached"] += len(samples)
            # No hole in the middle: it ends with what waits.
            reply.is_complete = True
        elif len(samples) or not came:
            reply.add(samples, reply.sent_text_end)

    def commit(self, segment_id: int) -> None:
        if reply := self._replies.get(segment_id):
            reply.is_held = False

    def pause(self, segment_id: int) -> None:
        """Holds a segment; it goes on by itself after the longest pause."""
        if (reply := self._replies.get(segment_id)) and reply.played and segment_id not in self._pauses:
            self._fade_out(segment_id)
            self._report(segment_id, reply)
        self._pauses[segment_id] = 0
        if len(self._pauses) > MOST_PAUSES:
            del self._pauses[min(self._pauses)]

    def resume(self, segment_id: int) -> None:
        """Goes on at the very sample where it held."""
        if self._pauses.pop(segment_id, None) is not None and (reply := self._replies.get(segment_id)):
            self._fade_in(segment_id, reply)

    def flush(self, segment_id: int) -> None:
        """Cuts everything older."""
        for older in [known for known in self._replies if known < segment_id]:
            self.drop(older)

    def drop(self, segment_id: int) -> None:
        """Cuts exactly this segment."""
        if segment_id in self._replies:
            self._fade_out(segment_id)
            self._end(segment_id)

    def drop_all(self) -> None:
        for segment_id in list(self._replies):
            self.drop(segment_id)

    def complete(self) -> None:
        """Nothing more will come: no audio, and no commit for what is held."""
        for segment_id, reply in list(self._replies.items()):
            reply.is_complete = True
            if reply.is_held:
                self._end(segment_id)

    @property
    def is_busy(self) -> bool:
        """Whether there is something that has not been played to its end."""
        return bool(self._replies) or self._fade.size > 0

    @property
    def queued(self) -> int:
        """Samples of replies that have not been played yet."""
        return sum(reply.queued for reply in self._replies.values())

    @property
    def is_timed(self) -> bool:
        """While nothing is ready: whether mere time changes that. A pause ends, a reply is given up."""
        segment_id, reply = next(iter(self._replies.items()), (0, None))
        return reply is not None and not reply.is_held and (segment_id in self._pauses or len(self._replies) > 1)

    @property
    def ready(self) -> int:
        """Samples that nothing holds back."""
        ready = len(self._fade)
        for segment_id, reply in self._replies.items():
            if reply.is_held or segment_id in self._pauses:
                break
            ready += reply.queued
            if not reply.is_complete:
                break
        return ready

    def play(self, samples: int) -> Samples:
        """The next `samples` of sound, shape (samples,); silence where there is nothing to play."""
        self._let_pause_pass(samples)
        sound = np.zeros(samples, np.float32)
        position = 0
        for part in self._parts(samples):
            sound[position : position + len(part)] = part
            position += len(part)
        if position < samples:
            self._sounding = None
        return sound

    def next_report(self) -> Report | None:
        """What there is to report, one by one."""
        return self._reports.popleft() if self._reports else None

    def _let_pause_pass(self, samples: int) -> None:
        segment_id, reply = next(iter(self._replies.items()), (0, None))
        if reply and not reply.is_held and segment_id in self._pauses:
            self._pauses[segment_id] += samples
            if self._pauses[segment_id] > self._longest_pause:
                self.resume(segment_id)

    def _parts(self, samples: int) -> Iterator[Samples]:
        """At most `samples`: a fade that has begun, then replies until one has nothing to play."""
        fade, self._fade = self._fade[:samples], self._fade[samples:]
        samples -= len(fade)
        yield fade
        while current := next(iter(self._replies.items()), None):
            segment_id, reply = current
            if reply.is_held or segment_id in self._pauses:
                return
            for part in reply.play(samples):
                samples -= len(part)
                self._sounding = segment_id
                if reply.played - reply.reported >= REPORT_SAMPLES:
                    self._report(segment_id, reply)
                yield part
            if not self._is_over(reply, samples):
                return
            self._end(segment_id)

    def _is_over(self, reply: Reply, samples: int) -> bool:
        """Whether it was played to its end, or has held up the next one for too long because that never came."""
        if reply.queued or reply.is_complete:
            return not reply.queued
        reply.lack(samples, is_waited_for=len(self._replies) > 1)
        return reply.starved > LONGEST_STARVING

    def _fade_out(self, segment_id: int) -> None:
        if self._sounding == segment_id and (reply := self._replies.get(segment_id)):
            would_be_played = np.concatenate([self._fade, reply.upcoming(FADE_SAMPLES)])
            self._fade = faded_out(would_be_played[:FADE_SAMPLES])
            self._sounding = None

    def _fade_in(self, segment_id: int, reply: Reply) -> None:
        if reply.recent.size:
            self._fade = np.concatenate([self._fade, faded_in(reply.recent)])
            self._sounding = segment_id

    def _report(self, segment_id: int, reply: Reply) -> None:
        reply.reported = reply.played
        self._reports.append(Report(segment_id, reply.played, reply.text_end))

    def _end(self, segment_id: int) -> None:
        reply = self._replies.pop(segment_id)
        self._pauses.pop(segment_id, None)
        self._over[segment_id] = None
        if len(self._over) > MOST_REMEMBERED:
            self._over.popitem(last=False)
        self.underruns += reply.underruns
        self._reports.append(Report(segment_id, reply.played, reply.text_end, True, reply.underruns))
