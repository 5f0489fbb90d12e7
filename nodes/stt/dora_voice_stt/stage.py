"""Collects each segment's speech until its end, and says what was said."""

from __future__ import annotations

import logging

from dora_voice.audio import EMPTY
from dora_voice.messages import SOURCE_RATE_HZ, Audio, Message, Segment, Text
from dora_voice.stage import Work
from dora_voice_stt.recognizer import Recognizer, Transcript
from dora_voice_stt.rejection import why_no_speech
from dora_voice_stt.utterance import Utterance

log = logging.getLogger("dora_voice.stt")

MOST_UTTERANCES = 64


class SttStage:
    def __init__(self, recognizer: Recognizer, longest_utterance_s: float) -> None:
        self._recognizer = recognizer
        self._longest_s = longest_utterance_s
        # A finished or dropped utterance stays until the session's next one, which may continue it.
        self._utterances: dict[Segment, Utterance] = {}

    def process(self, message: Message) -> Work | None:
        return self._hear(message) if isinstance(message, Audio) else None

    def dropped(self, segment: Segment) -> None:
        if utterance := self._utterances.get(segment):
            utterance.complete()

    def flushed(self, segment: Segment) -> None:
        # What was dropped may still be continued: its continuation can be what flushed the rest.
        for older in [known for known in self._utterances if known.is_older_than(segment)]:
            if not self._utterances[older].is_complete:
                del self._utterances[older]

    def failed(self, segment: Segment) -> None:
        self._utterances.pop(segment, None)

    def ended(self, session_id: str) -> None:
        for segment in [segment for segment in self._utterances if segment.session_id == session_id]:
            del self._utterances[segment]

    def _hear(self, speech: Audio) -> Work:
        utterance = self._utterances.get(speech.segment) or self._begin(speech)
        utterance.add(speech.samples, speech.sample_rate)
        if not speech.fin:
            return
        samples = utterance.complete()
        if utterance.dropped_samples:
            self._log_dropped(speech.segment, utterance.dropped_samples)
        if not len(samples):
            yield from self._say(Transcript("", ""), rejected="no audio")
            return
        yield None
        transcript = self._recognizer.transcribe(samples, speech.segment)
        yield None
        yield from self._say(transcript, why_no_speech(transcript))

    def _say(self, transcript: Transcript, rejected: str | None) -> Work:
        if rejected:
            log.info("rejected %r: %s", transcript.text, rejected)
        text, language = "" if rejected else transcript.text, transcript.language or None
        yield Text(port="hypothesis", text=text, language=language, fin=True)
        yield Text(port="text", text=text, language=language, rejected=rejected, fin=True)

    def _begin(self, speech: Audio) -> Utterance:
        session_id, before = speech.segment.session_id, EMPTY
        if speech.continues is not None and (first := self._utterances.get(Segment(session_id, speech.continues))):
            before = first.complete()
        for segment in [s for s, u in self._utterances.items() if s.session_id == session_id and u.is_complete]:
            del self._utterances[segment]
        if len(self._utterances) == MOST_UTTERANCES:
            oldest = next(iter(self._utterances))
            log.warning("forgot the speech of session=%s segment=%d: too many at once", *oldest)
            del self._utterances[oldest]
        return self._utterances.setdefault(speech.segment, Utterance(self._longest_s, before))

    def _log_dropped(self, segment: Segment, samples: int) -> None:
        dropped_ms = samples * 1000 // SOURCE_RATE_HZ
        log.warning(
            "session=%s segment=%d is longer than MAX_UTTERANCE_S=%g: dropped its last %d ms",
            *segment,
            self._longest_s,
            dropped_ms,
        )
