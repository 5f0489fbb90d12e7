"""What is being said to the user in one session, so that its echo can be told from their own words. Pure."""

from __future__ import annotations

from collections import OrderedDict

from dora_voice.messages import Played, Text

MOST_REPLIES = 16
MOST_CHARS = 20_000
BEFORE_CHARS, AFTER_CHARS = 80, 40
"""About the last four seconds, and what may have been played since the last report."""


class Replies:
    def __init__(self) -> None:
        self._texts: OrderedDict[int, str] = OrderedDict()
        self._heard: tuple[int, int] | None = None
        """The segment that is being played, and where in its text that is."""

    def add(self, fragment: Text) -> None:
        """The next fragment of a reply."""
        _, segment_id = fragment.segment
        text = self._texts.get(segment_id, "")
        self._texts[segment_id] = (text + fragment.text)[:MOST_CHARS]
        if len(self._texts) > MOST_REPLIES:
            self._texts.popitem(last=False)

    def played(self, played: Played) -> None:
        """Replies are played in order: those before this one will not be heard again."""
        _, segment_id = played.segment
        self._heard = segment_id, played.text_end or 0
        for older in [each for each in self._texts if each < segment_id]:
            del self._texts[older]

    def just_said(self, held: tuple[int, ...]) -> str:
        """Around what was reported as heard last, if that is of a reply that is held."""
        if self._heard is None or self._heard[0] not in held:
            return ""
        segment_id, text_end = self._heard
        return self._texts.get(segment_id, "")[max(0, text_end - BEFORE_CHARS) : text_end + AFTER_CHARS]
