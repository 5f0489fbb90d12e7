"""What the user said, put together from fragments."""

from __future__ import annotations

import logging
from collections import OrderedDict

from dora_voice.messages import Segment, Text

log = logging.getLogger("dora_voice.llm")

MOST_OPEN = 256
"""Transcripts whose end hasn't come yet."""
MOST_CHARS = 20_000
"""Of one transcript; what goes beyond is left out."""


class Transcripts:
    def __init__(self) -> None:
        self._open: OrderedDict[Segment, str] = OrderedDict()

    def add(self, fragment: Text) -> str:
        """Returns the transcript when it is whole; nothing before, and if there was no speech in it."""
        segment = fragment.segment
        already = self._open.pop(segment, "")
        transcript = (already + fragment.text)[:MOST_CHARS]
        if len(already) < MOST_CHARS < len(already) + len(fragment.text):
            log.warning("session=%s segment=%d: transcript cut to %d characters", *segment, MOST_CHARS)
        if not fragment.fin:
            self._keep(segment, transcript)
        return transcript.strip() if fragment.fin and fragment.rejected is None else ""

    def drop(self, segment: Segment) -> None:
        self._open.pop(segment, None)

    def end(self, session_id: str) -> None:
        for segment in [segment for segment in self._open if segment.session_id == session_id]:
            del self._open[segment]

    def _keep(self, segment: Segment, transcript: str) -> None:
        self._open[segment] = transcript
        if len(self._open) > MOST_OPEN:
            oldest, _ = self._open.popitem(last=False)
            log.warning("session=%s segment=%d: lost, more than %d transcripts are incomplete", *oldest, MOST_OPEN)
