"""Answers what the user said: one segment after the other, each with the past as it was heard."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Generator
from contextlib import closing
from typing import Protocol

from dora_voice.messages import Message, Played, Segment, Text
from dora_voice.stage import Surroundings, Wait, Work
from dora_voice_llm.history import History, Turn

log = logging.getLogger("dora_voice.llm")

HEARD_WAIT_MS = 200
"""How long the last report about a cut reply is waited for."""
MOST_SESSIONS = 32
MOST_OPEN = 256
"""Transcripts whose end hasn't come yet."""
MOST_CHARS = 20_000
"""Of one transcript; what goes beyond is left out."""


class Backend(Protocol):
    def reply(self, session_id: str, history: History, turn: Turn) -> Generator[str | None, None, None]:
        """The reply to `turn` in pieces that add up; None is a checkpoint. May be closed at any yield."""
        ...

    def forget(self, session_id: str) -> None: ...


class LlmStage:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._knows_heard = False
        self._histories: OrderedDict[str, History] = OrderedDict()
        self._transcripts: OrderedDict[Segment, str] = OrderedDict()

    def started(self, surroundings: Surroundings) -> None:
        self._knows_heard = "played" in surroundings.wired

    def process(self, message: Message) -> Work | None:
        if isinstance(message, Played):
            self._hear(message)
        return self._take(message) if isinstance(message, Text) else None

    def late(self, message: Message) -> None:
        """What the user said in a segment that was flushed before it could be answered stays said."""
        if isinstance(message, Text) and (user := self._collect(message)) and message.error is None:
            self._history(message.segment.session_id).add_past(message.segment.segment_id, user)

    def lost(self, port: str, for_good: bool) -> None:
        """Nobody tells any more what is heard of the replies that are being played."""
        self._knows_heard &= not for_good
        for history in self._histories.values():
            history.lose(for_good=for_good)

    def flushed(self, segment: Segment) -> None:
        if history := self._histories.get(segment.session_id):
            history.flush(segment.segment_id)

    def dropped(self, segment: Segment) -> None:
        self._transcripts.pop(segment, None)
        if history := self._histories.get(segment.session_id):
            history.drop(segment.segment_id)

    def failed(self, segment: Segment) -> None:
        self._transcripts.pop(segment, None)
        if history := self._histories.get(segment.session_id):
            history.fail(segment.segment_id)

    def ended(self, session_id: str) -> None:
        for segment in [key for key in self._transcripts if key.session_id == session_id]:
            del self._transcripts[segment]
        self._histories.pop(session_id, None)
        self._backend.forget(session_id)

    def _hear(self, played: Played) -> None:
        if history := self._histories.get(played.segment.session_id):
            history.played(played.segment.segment_id, played.text_end, played.samples, is_last=played.fin)

    def _take(self, fragment: Text) -> Work:
        user = self._collect(fragment)
        if user:
            yield from self._answer(fragment.segment, user)
        elif fragment.fin:
            yield _fragment("", 0, fin=True)

    def _collect(self, fragment: Text) -> str:
        """Puts the transcript together. Returns it when it is whole; nothing if there was no speech in it."""
        segment = fragment.segment
        already = self._transcripts.pop(segment, "")
        transcript = (already + fragment.text)[:MOST_CHARS]
        if len(already) < MOST_CHARS < len(already) + len(fragment.text):
            log.warning("session=%s segment=%d: transcript cut to %d characters", *segment, MOST_CHARS)
        if not fragment.fin:
            self._keep(segment, transcript)
        return transcript.strip() if fragment.fin and fragment.rejected is None else ""

    def _keep(self, segment: Segment, transcript: str) -> None:
        self._transcripts[segment] = transcript
        if len(self._transcripts) > MOST_OPEN:
            oldest, _ = self._transcripts.popitem(last=False)
            log.warning("session=%s segment=%d: lost, more than %d transcripts are incomplete", *oldest, MOST_OPEN)

    def _answer(self, segment: Segment, user: str) -> Work:
        history = self._history(segment.session_id)
        turn = history.add(segment.segment_id, user)
        yield from _until_past_is_known(history, turn)
        with closing(self._backend.reply(segment.session_id, history, turn)) as deltas:
            for delta in deltas:
                turn.reply += delta or ""
                yield _fragment(delta, len(turn.reply)) if delta else None
        history.sent(turn)
        yield _fragment("", len(turn.reply), fin=True)

    def _history(self, session_id: str) -> History:
        history = self._histories.setdefault(session_id, History(self._knows_heard))
        self._histories.move_to_end(session_id)
        if len(self._histories) > MOST_SESSIONS:
            oldest = next(iter(self._histories))
            log.warning("more than %d sessions: the least recently used one, %s, is forgotten", MOST_SESSIONS, oldest)
            self.ended(oldest)
        return history


def _fragment(text: str, end: int, fin: bool = False) -> Text:
    return Text(port="text", text=text, text_start=end - len(text), text_end=end, fin=fin)


def _until_past_is_known(history: History, turn: Turn) -> Work:
    """Waits while an older reply is played, then a little for the last report about one that was cut."""
    while any(older.is_playing for older in history.before(turn)):
        yield Wait()
    left_ms: float = HEARD_WAIT_MS
    while left_ms > 0 and not all(older.is_past for older in history.before(turn)):
        left_ms = yield Wait(at_most_ms=left_ms)
    for older in history.before(turn):
        older.settle()
