"""Sends a recording as a microphone would, or as fast as the conversation allows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from dora_voice.audio import EMPTY, Rechunker, Samples
from dora_voice.messages import SOURCE_RATE_HZ, Audio, Control, Message, Played
from dora_voice.stage import Surroundings, Wait, Work
from dora_voice_source.quiet import mark_onsets
from dora_voice_source.replies import RepliesDue

log = logging.getLogger("dora_voice.source")

CHUNK_SAMPLES = 320
ON_TIME_S = 1e-4
BURST_CHUNKS = 25
BURST_PAUSE_MS = 10.0
"""0.5 s of sound every 10 ms: fast, and no queue on the way has to hold more than a burst or two."""
SETTLE_S = 0.5
"""What the vad says about the sound sent last has arrived after this time."""
LONGEST_WAIT_S = 60.0


class SourceStage:
    """`recording` is 16 kHz mono, in pieces of any size."""

    def __init__(self, recording: Iterable[Samples], session_id: str, *, is_fast: bool) -> None:
        self._recording = recording
        self._session_id = session_id
        self._is_fast = is_fast
        self._replies_due = RepliesDue()
        self._sent_samples = 0

    def started(self, surroundings: Surroundings) -> None:
        self._clock = surroundings.clock
        self._hears_replies = {"control", "played"} <= surroundings.wired

    def process(self, message: Message) -> None:
        if isinstance(message, Control | Played) and message.session_id == self._session_id:
            self._replies_due.note(message)

    def lost(self, port: str, for_good: bool) -> None:
        """The vad or the speaker has gone, and the replies with it."""
        self._replies_due.give_up()

    def run(self) -> Work:
        yield from self._fast() if self._is_fast else self._in_real_time()
        yield self._audio(EMPTY, finish=True)

    def _in_real_time(self) -> Work:
        """A chunk leaves when its last sample would have been spoken. What is late leaves at once."""
        began_s = self._clock()
        for chunk in _chunks(self._recording):
            due_s = began_s + (self._sent_samples + len(chunk)) / SOURCE_RATE_HZ
            while (early_s := due_s - self._clock()) > ON_TIME_S:
                yield Wait(at_most_ms=early_s * 1000)
            yield self._audio(chunk)

    def _fast(self) -> Work:
        if not self._hears_replies:
            log.warning("PACE=fast doesn't wait for replies: it needs both control and played to be wired")
        for number, (chunk, is_onset) in enumerate(mark_onsets(_chunks(self._recording))):
            if is_onset and self._hears_replies:
                yield from self._until_replied()
            elif number % BURST_CHUNKS == 0:
                yield Wait(at_most_ms=BURST_PAUSE_MS)
            yield self._audio(chunk)

    def _until_replied(self) -> Work:
        """Until the replies were played. An open utterance is not waited for: it needs more sound to end."""
        began_s = self._clock()
        while (waited_s := self._clock() - began_s) < LONGEST_WAIT_S:
            if waited_s >= SETTLE_S and not self._replies_due:
                return
            until_s = SETTLE_S if waited_s < SETTLE_S else LONGEST_WAIT_S
            yield Wait(at_most_ms=(until_s - waited_s) * 1000 + 1)
        log.warning("goes on without a reply: none was played to its end within %.0f s", LONGEST_WAIT_S)
        self._replies_due.give_up()

    def _audio(self, samples: Samples, *, finish: bool = False) -> Audio:
        audio_ms = self._sent_samples * 1000 // SOURCE_RATE_HZ
        self._sent_samples += len(samples)
        return Audio(
            port="audio",
            session_id=self._session_id,
            samples=samples,
            sample_rate=SOURCE_RATE_HZ,
            audio_ms=audio_ms,
            finish=finish,
        )


def _chunks(recording: Iterable[Samples]) -> Iterator[Samples]:
    """20 ms each; the last may be shorter."""
    rechunker = Rechunker(CHUNK_SAMPLES)
    for piece in recording:
        yield from rechunker.feed(piece)
    if len(rest := rechunker.flush()):
        yield rest
