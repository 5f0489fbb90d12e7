"""One session at work: whose turn it is, and what of its replies was heard."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import closing
from functools import partial

from dora_voice.messages import Played, Segment, Text
from dora_voice.stage import Wait
from dora_voice_llm.journal import Journal, Past
from dora_voice_llm.line import Line, Place
from dora_voice_llm.replies import Replies, Reply
from dora_voice_llm.spoken_end import is_long_enough
from dora_voice_session.requests import Generate
from dora_voice_session.schema import (
    ChatMessage,
    RollbackResult,
    StreamingChunk,
    StreamingConfig,
    StreamingResponse,
)
from dora_voice_session.session import Session
from dora_voice_session.work import Work

log = logging.getLogger("dora_voice.llm")

HEARD_WAIT_MS = 200
"""How long the last report about a cut reply is waited for."""


class Conversation:
    """`knows_heard`: somebody reports what is played."""

    def __init__(self, session: Session, journal: Journal, *, knows_heard: bool) -> None:
        self.session = session
        self.knows_heard = knows_heard
        self.line = Line()
        self.replies = Replies(self._settle)
        self._journal = journal
        self._speculative: set[int] = set()
        """Segments of which nothing is written down yet."""

    # What the user says

    def say(self, segment_id: int, text: str, *, is_speculative: bool) -> None:
        """All that the user said in a segment."""
        self.session.revise([ChatMessage(role="user", content=text)], turn_id=segment_id)
        if is_speculative:
            self._speculative.add(segment_id)
        else:
            self._journal.said(self._segment(segment_id), text)

    def commit(self, segment_id: int) -> None:
        """The segment is real: what there is of it is written down."""
        if segment_id in self._speculative and (turn := self.session.turns.find(segment_id)):
            self._journal.said(self._segment(segment_id), turn.messages[-1].text)
            self._journal.replied(self._segment(segment_id), turn.reply or "")
        self._speculative.discard(segment_id)

    def drop(self, segment_id: int) -> None:
        """The segment never happened."""
        self._speculative.discard(segment_id)
        self.replies.drop(segment_id)
        if self.session.drop(segment_id):
            self._journal.dropped(self._segment(segment_id))

    def drop_guess(self, segment_id: int) -> None:
        """What was guessed of the segment came to nothing."""
        if (turn := self.session.turns.find(segment_id)) and turn.is_open:
            self.drop(segment_id)

    def read_ahead(self, segment_id: int, guess: str) -> Generator[None, None, None]:
        """Computes what the user has probably said so far, until somebody needs the session."""
        if not self.line.is_empty or self.replies.before(segment_id):
            return
        with self.line.place() as place:
            if self.session.revise([ChatMessage(role="user", content=guess)], turn_id=segment_id, is_open=True):
                for _ in self.session.compute():
                    yield
                    if place.is_wanted:
                        return

    # What is answered, and heard

    def hear(self, played: Played) -> None:
        """A report of the speaker."""
        segment_id = played.segment.segment_id
        reply = self.replies.played(segment_id, played.text_end, played.samples, is_last=played.fin)
        if reply and reply.turn_id not in self._speculative:
            self._journal.playing(self._segment(reply.turn_id), reply.heard_end)

    def until_past_is_known(self, segment_id: int) -> Generator[Wait, float, None]:
        """Waits while an older reply is played, then a little for the last report about one that was cut."""
        while self.replies.is_playing(segment_id):
            yield Wait()
        left_ms: float = HEARD_WAIT_MS
        while left_ms > 0 and self.replies.before(segment_id):
            left_ms = yield Wait(at_most_ms=left_ms)
        for reply in self.replies.before(segment_id):
            self.replies.settle(reply)

    def answer(self, segment_id: int, place: Place) -> Work[StreamingChunk | None, StreamingResponse]:
        """The spoken reply to what the user said in a segment."""
        is_enough = partial(is_long_enough, most_tokens=self.session.generation.max_new_tokens)
        chunks = self.session.generate(
            StreamingConfig(),
            turn_id=segment_id,
            must_speak=True,
            is_enough=is_enough,
            is_stopped=lambda: place.is_stopped,
        )
        return self._watched(Reply(segment_id, segment_id, is_spoken=self.knows_heard), chunks)

    def generate(
        self, segment_id: int, request: Generate, place: Place, *, is_spoken: bool
    ) -> Work[StreamingChunk | None, StreamingResponse]:
        """The reply to what was requested last."""
        turn_id = self.session.turns.last.turn_id if self.session.turns.last else segment_id
        chunks = self.session.generate(request.streaming, request.generation, is_stopped=lambda: place.is_stopped)
        return self._watched(Reply(segment_id, turn_id, is_spoken=is_spoken and self.knows_heard), chunks)

    def _watched(
        self, reply: Reply, chunks: Work[StreamingChunk | None, StreamingResponse]
    ) -> Work[StreamingChunk | None, StreamingResponse]:
        """Passes the chunks on, and keeps track of what is sent and written down."""
        self.replies.begin(reply)
        try:
            with closing(chunks):
                while True:
                    chunk = next(chunks)
                    if chunk is not None:
                        reply.text += chunk.text_delta
                        if reply.turn_id not in self._speculative:
                            self._journal.replied(self._segment(reply.turn_id), chunk.text_delta)
                    yield chunk
        except StopIteration as done:
            self.replies.sent(reply)
            return done.value
        finally:
            usage = self.session.usage
            log.info(
                "turn session=%s segment=%d prefilled=%d reused=%d replayed=%d generated=%d",
                *(self.session.session_id, reply.segment_id, usage.computed_tokens, usage.reused_tokens),
                *(usage.replayed_tokens, usage.generated_tokens),
            )

    def fragment(self, text: str, end: int, *, fin: bool = False) -> Text:
        """A piece of a spoken reply; with it, the reply has `end` code points."""
        language = self.session.settings.language
        return Text(port="text", text=text, text_start=end - len(text), text_end=end, fin=fin, language=language)

    # What is done to the past

    def rollback(self) -> RollbackResult:
        result = self.session.rollback()
        if result.success:
            self.replies.clear()
            self.write_down()
        return result

    def reset(self) -> None:
        self.session.reset()
        self.replies.clear()
        self.write_down()

    def write_down(self) -> None:
        """The whole past, after it was changed otherwise than by going on."""
        unheard = {reply.turn_id: reply.heard_end for reply in self.replies}
        self._journal.replaced(self.session.session_id, self.session.settings, self.session.turns, unheard)

    def take_up(self, past: Past) -> None:
        """Goes on after a crash. What was being played then is heard to wherever the speaker still says."""
        self.session.turns = past.turns.copy()
        if past.settings is not None:
            self.session.configure(past.settings)
        for turn_id, heard_end in past.unheard.items():
            turn = self.session.turns.find(turn_id)
            text = turn.reply if turn and turn.reply else ""
            self.replies.begin(Reply(turn_id, turn_id, self.knows_heard, text, heard_end, is_sent=True, is_cut=True))

    def _settle(self, reply: Reply) -> None:
        self.session.heard(reply.heard_end, reply.turn_id)
        if reply.turn_id not in self._speculative:
            self._journal.heard(self._segment(reply.turn_id), reply.heard_end)

    def _segment(self, segment_id: int) -> Segment:
        return Segment(self.session.session_id, segment_id)
