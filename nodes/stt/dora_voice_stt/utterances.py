"""What is being said in all sessions, and what was said last and may still be continued."""

from __future__ import annotations

import logging

from dora_voice.audio import EMPTY
from dora_voice.messages import Audio, Segment
from dora_voice_stt.utterance import Utterance

log = logging.getLogger("dora_voice.stt")

MOST_UTTERANCES = 64


class Utterances:
    def __init__(self, longest_s: float, hypothesis_ms: int) -> None:
        self._longest_s = longest_s
        self._hypothesis_ms = hypothesis_ms
        self._known: dict[Segment, Utterance] = {}

    def hear(self, speech: Audio) -> Utterance:
        """The utterance that this speech is part of. The first of a segment begins it."""
        utterance = self._known.get(speech.segment) or self._begin(speech)
        utterance.add(speech.samples, speech.sample_rate)
        utterance.is_speculative = speech.speculative
        return utterance

    def hear_dropped(self, speech: Audio) -> None:
        """Speech that was still under way when its segment was dropped: what continues it continues this, too."""
        if speech.segment not in self._known or not self._known[speech.segment].is_complete:
            self.hear(speech).is_dropped = True

    def is_open(self, segment: Segment) -> bool:
        return segment in self._known and self._known[segment].is_open

    def due(self) -> tuple[Segment, Utterance] | None:
        """Of those that are due for a guess, the one that has waited longest.

        In a pause none is: a draft says the same.
        """
        due = [(s, u) for s, u in self._known.items() if _is_due(u)]
        return max(due, key=lambda each: each[1].hypotheses.new_samples(each[1].kept_samples), default=None)

    def pausing(self) -> tuple[Segment, Utterance] | None:
        """One in which the speaker pauses, perhaps for good, and that has no draft of what was said."""
        known = self._known.items() if self._hypothesis_ms else ()
        return next(((s, u) for s, u in known if u.is_open and u.is_pausing and not u.is_drafted), None)

    def drop(self, segment: Segment) -> None:
        if utterance := self._known.get(segment):
            utterance.is_dropped = True

    def flush(self, segment: Segment) -> None:
        # What was dropped may still be continued: its continuation can be what flushed the rest.
        for older in [known for known in self._known if known.is_older_than(segment)]:
            if self.is_open(older):
                del self._known[older]

    def fail(self, segment: Segment) -> None:
        """It has ended, but may be continued still."""
        if utterance := self._known.get(segment):
            utterance.complete()

    def end(self, session_id: str) -> None:
        for segment in [segment for segment in self._known if segment.session_id == session_id]:
            del self._known[segment]

    def _begin(self, speech: Audio) -> Utterance:
        session_id, before = speech.segment.session_id, EMPTY
        continued = None if speech.continues is None else Segment(session_id, speech.continues)
        if continued and (first := self._known.get(continued)):
            before = first.complete()
        # What begins now may be a false alarm, and what comes then continue the same.
        self._forget_past(session_id, but=continued)
        self._make_room()
        utterance = self._known[speech.segment] = Utterance(self._longest_s, before, self._hypothesis_ms)
        return utterance

    def _forget_past(self, session_id: str, but: Segment | None) -> None:
        """Of what is over, the last that did happen stays, as it may be continued."""
        past = [s for s, u in self._known.items() if s.session_id == session_id and not u.is_open]
        last = [segment for segment in past if not self._known[segment].is_dropped][-1:]
        for segment in past:
            if segment not in (*last, but):
                del self._known[segment]

    def _make_room(self) -> None:
        if len(self._known) < MOST_UTTERANCES:
            return
        oldest = min(self._known, key=self.is_open)
        if self.is_open(oldest):
            log.warning("forgot the speech of session=%s segment=%d: too many at once", *oldest)
        del self._known[oldest]


def _is_due(utterance: Utterance) -> bool:
    is_due = utterance.is_open and utterance.hypotheses.is_due(utterance.kept_samples)
    return is_due and not utterance.is_pausing
