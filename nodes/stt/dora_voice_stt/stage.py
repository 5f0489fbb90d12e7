"""Collects each segment's speech until its end, and says what was said; before that, what it may be."""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import replace

from dora_voice.messages import SOURCE_RATE_HZ, Audio, Message, Segment, Text
from dora_voice.stage import Surroundings, Wait, Work
from dora_voice_stt.recognizer import Recognizer, Transcript
from dora_voice_stt.rejection import why_no_speech
from dora_voice_stt.utterance import Utterance
from dora_voice_stt.utterances import Utterances

log = logging.getLogger("dora_voice.stt")


class SttStage:
    def __init__(self, recognizer: Recognizer, longest_utterance_s: float, hypothesis_ms: int = 0) -> None:
        self._recognizer = recognizer
        self._longest_s = longest_utterance_s
        self._utterances = Utterances(longest_utterance_s, hypothesis_ms)
        self._recordings = Utterances(longest_utterance_s, hypothesis_ms=0)
        self._taken = 0
        """How many messages have been taken up."""
        self._ending = 0
        """How many utterances are being transcribed."""
        self._is_guessing = True

    def started(self, surroundings: Surroundings) -> None:
        self._is_guessing = "hypothesis" in surroundings.wired_outputs

    def process(self, message: Message) -> Work | None:
        self._taken += 1
        return self._hear(message) if isinstance(message, Audio) else None

    def run(self) -> Work:
        """Drafts and guesses, whenever nothing else is to be done. One at a time, of all that came: none ever waits."""
        while True:
            yield from self._catch_up()
            if pausing := self._utterances.pausing():
                yield from self._draft(*pausing)
            elif self._is_guessing and (due := self._utterances.due()):
                yield from self._guess(*due)
            else:
                yield Wait()

    def late(self, message: Message) -> None:
        if isinstance(message, Audio):
            self._of(message).hear_dropped(message)

    def dropped(self, segment: Segment) -> None:
        self._utterances.drop(segment)
        self._recordings.drop(segment)

    def flushed(self, segment: Segment) -> None:
        self._utterances.flush(segment)
        self._recordings.flush(segment)

    def failed(self, segment: Segment) -> None:
        self._utterances.fail(segment)
        self._recordings.fail(segment)

    def ended(self, session_id: str) -> None:
        self._utterances.end(session_id)
        self._recordings.end(session_id)

    def _of(self, message: Audio) -> Utterances:
        return self._recordings if message.port == "recording" else self._utterances

    def _hear(self, speech: Audio) -> Work:
        utterance = self._of(speech).hear(speech)
        if not speech.fin:
            return
        self._ending += 1
        try:
            said = yield from self._transcribe(speech.segment, utterance)
            yield from _recorded(*said) if speech.port == "recording" else _said(*said)
        finally:
            self._ending -= 1

    def _transcribe(
        self, segment: Segment, utterance: Utterance
    ) -> Generator[None, None, tuple[Transcript, str | None]]:
        """What was said, and why it is rejected, if it is."""
        samples = utterance.complete()
        if utterance.dropped_samples:
            self._log_dropped(segment, utterance.dropped_samples)
        if not len(samples):
            return Transcript("", ""), "no audio"
        transcript = utterance.draft.transcript if utterance.draft and utterance.is_drafted else None
        if transcript is None:
            yield None
            transcript = self._recognizer.transcribe(samples, segment)
            yield None
        rejected = why_no_speech(transcript)
        if rejected:
            log.info("rejected %r: %s", transcript.text, rejected)
        return replace(transcript, text="" if rejected else transcript.text), rejected

    def _catch_up(self) -> Work:
        """Lets everything go first that has come, until a round brings nothing new."""
        # What came during our last step gets its place in line only now, behind ours.
        yield None
        taken = None
        while taken != self._taken or self._ending:
            taken = self._taken
            yield None

    def _draft(self, segment: Segment, utterance: Utterance) -> Work:
        """If nothing more is said, this is the transcript. So it is there as soon as the utterance has ended."""
        samples, transcript = utterance.so_far(), None
        utterance.hypotheses.begin(len(samples))
        try:
            transcript = self._recognizer.transcribe(samples, segment)
        except Exception:
            # The model will have another try when the utterance has ended.
            log.exception("no draft of session=%s segment=%d", *segment)
        utterance.draft = utterance.draft_of(transcript, len(samples))
        yield from self._catch_up()
        if transcript and self._is_guessing and self._utterances.is_open(segment) and not why_no_speech(transcript):
            yield from self._suppose(segment, utterance, transcript)

    def _guess(self, segment: Segment, utterance: Utterance) -> Work:
        utterance.hypotheses.begin(utterance.kept_samples)
        try:
            for transcript in self._recognizer.guess(utterance.so_far(), segment):
                yield from self._catch_up()
                if not self._utterances.is_open(segment) or (transcript is None and utterance.is_pausing):
                    return
                if transcript and not why_no_speech(transcript):
                    yield from self._suppose(segment, utterance, transcript)
        except Exception:
            # The model will have another try, at the latest when the utterance has ended.
            log.exception("no guess of session=%s segment=%d", *segment)

    def _suppose(self, segment: Segment, utterance: Utterance, transcript: Transcript) -> Work:
        stable = utterance.hypotheses.revise(transcript.text)
        if stable is None:
            return
        yield Text(
            port="hypothesis",
            session_id=segment.session_id,
            segment_id=segment.segment_id,
            speculative=utterance.is_speculative,
            text=transcript.text,
            text_start=0,
            text_end=stable,
            language=transcript.language,
        )

    def _log_dropped(self, segment: Segment, samples: int) -> None:
        dropped_ms = samples * 1000 // SOURCE_RATE_HZ
        log.warning(
            "session=%s segment=%d is longer than MAX_UTTERANCE_S=%g: dropped its last %d ms",
            *segment,
            self._longest_s,
            dropped_ms,
        )


def _said(transcript: Transcript, rejected: str | None) -> Work:
    text, language = transcript.text, transcript.language or None
    # The text first: the hypothesis may bring about a flush that ends this segment.
    yield Text(port="text", text=text, language=language, rejected=rejected, fin=True)
    yield Text(port="hypothesis", text=text, text_start=0, text_end=len(text), language=language, fin=True)


def _recorded(transcript: Transcript, rejected: str | None) -> Work:
    language = transcript.language or None
    yield Text(port="recorded", text=transcript.text, language=language, rejected=rejected, fin=True)
