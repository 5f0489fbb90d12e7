"""Which replies are still to come or being played, as the vad's and the speaker's messages tell."""

from __future__ import annotations

from dora_voice.messages import Control, Played


class RepliesDue:
    """Segments of one session that are committed, and whose reply has not been played to its end."""

    def __init__(self) -> None:
        self._due: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._due)

    def note(self, message: Control | Played) -> None:
        _, segment_id = message.segment
        if isinstance(message, Played):
            # Replies are played in order.
            self._due = {due for due in self._due if due > segment_id or not message.fin}
        elif message.verb == "commit":
            self._due.add(segment_id)
        elif message.verb == "drop":
            self._due.discard(segment_id)
        elif message.verb == "flush":
            self._due = {due for due in self._due if due >= segment_id}

    def give_up(self) -> None:
        self._due.clear()
