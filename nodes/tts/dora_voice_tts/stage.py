"""Speaks a reply while it is being written, not much further ahead than it is heard."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from dora_voice.audio import EMPTY, Samples
from dora_voice.messages import SPEAKER_RATE_HZ, Audio, Message, Played, Segment, Text
from dora_voice.stage import Surroundings, Wait, Work
from dora_voice_tts.chunks import CHUNK_SAMPLES, Chunks
from dora_voice_tts.clauses import Beginning, Clause, ClauseSplitter
from dora_voice_tts.spoken import spoken
from dora_voice_tts.voice import Begun, Voice

log = logging.getLogger("dora_voice.tts")

MOST_REPLIES = 1024
SILENT_MS = 10_000.0
"""Without a report of the speaker for so long, what was sent is not waited for: some of it may have been lost."""


@dataclass(slots=True)
class Reply:
    """A reply that is being spoken. Its sound is counted in samples of 24 kHz."""

    segment: Segment
    clauses: ClauseSplitter = field(default_factory=ClauseSplitter)
    chunks: Chunks = field(default_factory=Chunks)
    begun: Begun | None = None
    """What was said of the clause that isn't complete."""
    sent_text_end: int = 0
    sent_samples: int = 0
    played_samples: float = 0


class TtsStage:
    def __init__(self, voice: Voice, ahead_ms: int) -> None:
        self._voice = voice
        self._ahead_samples = ahead_ms * SPEAKER_RATE_HZ // 1000
        self._is_paced = False
        self._replies: dict[Segment, Reply] = {}
        self._unreported: set[str] = set()
        """Sessions that wait for the speaker, and have heard nothing of it since."""

    def started(self, surroundings: Surroundings) -> None:
        self._is_paced = "played" in surroundings.wired

    def process(self, message: Message) -> Work | None:
        if isinstance(message, Text):
            return self._speak(message)
        if isinstance(message, Played):
            self._unreported.discard(message.segment.session_id)
        if isinstance(message, Played) and (reply := self._replies.get(message.segment)):
            # What the speaker has ended, it isn't waited for.
            reply.played_samples = max(reply.played_samples, math.inf if message.fin else message.samples)
        return None

    def lost(self, port: str, for_good: bool) -> None:
        """What the speaker had is gone with it: nothing of these replies is waited for any more."""
        self._is_paced &= not for_good
        for reply in self._replies.values():
            reply.played_samples = math.inf

    def flushed(self, segment: Segment) -> None:
        for older in [known for known in self._replies if known.is_older_than(segment)]:
            del self._replies[older]

    def dropped(self, segment: Segment) -> None:
        self._replies.pop(segment, None)

    failed = dropped

    def ended(self, session_id: str) -> None:
        for segment in [segment for segment in self._replies if segment.session_id == session_id]:
            del self._replies[segment]

    def _speak(self, fragment: Text) -> Work:
        reply = self._replies.get(fragment.segment) or self._begin(fragment.segment)
        for clause in reply.clauses.feed(fragment.text):
            yield from self._say(clause, reply)
        if fragment.fin:
            yield from self._end(fragment.segment, reply)
        elif beginning := reply.clauses.beginning():
            yield from self._begin_to_say(beginning, reply)

    def _end(self, segment: Segment, reply: Reply) -> Work:
        for clause in reply.clauses.flush():
            yield from self._say(clause, reply)
        self._replies.pop(segment, None)
        yield _audio(EMPTY, reply.sent_text_end, reply.clauses.given_out, fin=True)

    def _begin(self, segment: Segment) -> Reply:
        if len(self._replies) == MOST_REPLIES:
            oldest = next(iter(self._replies))
            log.warning("forgot the reply of session=%s segment=%d: too many at once", *oldest)
            del self._replies[oldest]
        return self._replies.setdefault(segment, Reply(segment))

    def _say(self, clause: Clause, reply: Reply) -> Work:
        # What isn't spoken, a line of dashes for example, counts to the next message.
        if not (text := spoken(clause.text)):
            return
        yield None
        speech, reply.begun = self._voice.speak(text, reply.begun), None
        yield None
        sound = chain(reply.chunks.feed(speech.pieces, self._voice.rate_hz), reply.chunks.flush())
        yield from self._send(sound, speech.total_samples, clause, reply)

    def _begin_to_say(self, beginning: Beginning, reply: Reply) -> Work:
        yield None
        begun = self._voice.begin(beginning.words.text.strip(), beginning.next_word, reply.begun)
        yield None
        if begun is not None:
            speech, reply.begun = begun
            sound = reply.chunks.feed(speech.pieces, self._voice.rate_hz)
            yield from self._send(sound, speech.total_samples, beginning.words, reply)

    def _send(self, sound: Iterator[Samples], total_samples: int, clause: Clause, reply: Reply) -> Work:
        """The voice doesn't say when it says what: the text is spread evenly over the time."""
        # As the resampler rounds.
        count = max(1, math.ceil(int(total_samples * SPEAKER_RATE_HZ / self._voice.rate_hz + 0.5) / CHUNK_SAMPLES))
        start = max(clause.start, reply.sent_text_end)
        for index, samples in enumerate(sound, start=1):
            yield from self._wait(reply)
            text_start, text_end = reply.sent_text_end, start + (clause.end - start) * min(index, count) // count
            reply.sent_text_end = text_end
            reply.sent_samples += len(samples)
            yield _audio(np.clip(samples, -1, 1), text_start, text_end)

    def _wait(self, reply: Reply) -> Work:
        """Until no more than AHEAD_MS of it is sent and not played."""
        session_id, left_ms = reply.segment.session_id, SILENT_MS
        try:
            while self._is_paced and reply.sent_samples - reply.played_samples >= self._ahead_samples:
                self._unreported.add(session_id)
                left_ms = yield Wait(at_most_ms=left_ms)
                if session_id not in self._unreported:
                    left_ms = SILENT_MS
                elif not left_ms:
                    log.warning("session=%s segment=%d: the speaker is silent: goes on without it", *reply.segment)
                    reply.played_samples = math.inf
        finally:
            self._unreported.discard(session_id)


def _audio(samples: Samples, text_start: int, text_end: int, fin: bool = False) -> Audio:
    return Audio(
        port="audio",
        samples=samples,
        sample_rate=SPEAKER_RATE_HZ,
        text_start=text_start,
        text_end=text_end,
        fin=fin,
    )
