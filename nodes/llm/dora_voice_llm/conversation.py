"""One session at work: what is said, what is answered, and what of that was heard."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial

from dora_voice.messages import Played, Text
from dora_voice.stage import Wait
from dora_voice_llm import past
from dora_voice_llm.fair_lock import Ticket
from dora_voice_llm.guess import Guess
from dora_voice_llm.journal import Journal
from dora_voice_llm.past import Entry, Past, Unheard
from dora_voice_llm.replies import Replies, Reply
from dora_voice_llm.spoken_end import is_long_enough
from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import (
    ChatMessage,
    Generation,
    PrefillResult,
    RollbackResult,
    SessionSettings,
    StreamingChunk,
    StreamingConfig,
    StreamingRequest,
    StreamingResponse,
)
from dora_voice_session.session import Session
from dora_voice_session.turns import Turns
from dora_voice_session.work import Work

log = logging.getLogger("dora_voice.llm")

MOST_REMEMBERED = 256
"""Segments, so that none is spoken twice."""
HEARD_WAIT_MS = 200
"""How long the last report about a cut reply is waited for."""

Answer = Work[Text | StreamingChunk | None, StreamingResponse]
"""Chunks of a reply, and the fragments of it that are to be spoken."""


class Conversation:
    """Whoever computes holds the session's lock. What the session refuses is raised as RefusedError."""

    def __init__(self, session: Session, journal: Journal, *, knows_heard: bool) -> None:
        self.knows_heard = knows_heard
        """Somebody reports what is played."""
        self._session = session
        self._journal = journal
        self._replies = Replies(self._settle)
        self._uncommitted: set[int] = set()
        """Turns of which nothing is written down yet."""
        self._guess = Guess(session)
        self._spoken: deque[int] = deque(maxlen=MOST_REMEMBERED)
        """Segments that have a spoken reply."""
        self._has_ended = False

    # What is said

    def say(self, segment_id: int, text: str, *, is_speculative: bool) -> None:
        """All that the user said in a segment."""
        if not self._guess.comes_true(segment_id) and self._session.turns.find(segment_id):
            raise RefusedError("bad_request", f"segment {segment_id}: expected a new one, this has its message already")
        self._session.revise([ChatMessage(role="user", content=text)], turn_id=segment_id)
        self._uncommitted &= {turn.turn_id for turn in (*self._session.turns, *self._session.given_up)}
        self._uncommitted.add(segment_id)
        if not is_speculative:
            self.commit(segment_id)

    def stays_said(self, segment_id: int, text: str) -> None:
        """All that the user said in a segment that was flushed: nobody answers it."""
        self.say(segment_id, text, is_speculative=False)
        self._fit_unanswered(segment_id + 1)

    def guess(self, segment_id: int, text: str, ticket: Ticket) -> Generator[None, None, None]:
        """Computes what the user has probably said so far, until somebody else needs the session."""
        if self._replies.before(segment_id) or not self._guess.revise(segment_id, text):
            return
        # Nothing that was said makes way for what may never be.
        for _ in self._session.compute(keeps_all=True):
            yield
            if ticket.has_waiters:
                break

    def reject(self, segment_id: int) -> None:
        """Nothing was said in a segment, whatever was guessed."""
        if self._guess.turn_id == segment_id:
            self._guess.drop()

    def commit(self, segment_id: int) -> None:
        """The segment is real: what there is of it is written down."""
        if segment_id not in self._uncommitted:
            return
        self._uncommitted.discard(segment_id)
        turn = self._session.turns.find(segment_id)
        if turn is None or segment_id == self._session.given_up_for:
            # Now it is certain that something made way: others for this turn, or this turn for others.
            self._write_whole()
        else:
            unheard = next((reply for reply in self._replies if reply.turn_id == segment_id), None)
            for entry in past.told(turn, unheard):
                self._write(entry)

    def flush(self, before_id: int) -> None:
        """Older replies are cut; what the user said stays said."""
        self._replies.flush(before_id)
        for segment_id in sorted(turn_id for turn_id in self._uncommitted if turn_id < before_id):
            self.commit(segment_id)
        if self._guess.turn_id is not None and self._guess.turn_id < before_id:
            self._guess.drop()
        if any(turn.reply is None for turn in self._session.turns if turn.turn_id < before_id):
            self._fit_unanswered(before_id)

    def drop(self, segment_id: int) -> None:
        """The segment never happened."""
        is_written = segment_id not in self._uncommitted and segment_id != self._guess.turn_id
        brings_back = segment_id == self._session.given_up_for
        if self._guess.turn_id == segment_id:
            self._guess.forget()
        self._uncommitted.discard(segment_id)
        self._replies.drop(segment_id)
        is_dropped = self._session.drop(segment_id)
        if is_dropped and brings_back:
            self._write_whole()
        elif is_dropped and is_written:
            self._write(past.dropped(segment_id))

    def configure(self, settings: SessionSettings) -> None:
        self._session.configure(settings)
        self._write_whole()

    def prefill(self, request: StreamingRequest, segment_id: int, *, replace: bool) -> Work[None, PrefillResult]:
        """Reads the messages of a request; `replace`: in place of the history."""
        self._guess.drop()
        with self._written_if_closed():
            result = yield from self._session.prefill(request, new_id=segment_id, replace=replace)
        if replace:
            self._replies.clear()
        self._write_whole()
        return result

    def history(self) -> list[ChatMessage]:
        """What was said and heard, without what is only guessed."""
        return [ChatMessage.model_validate(message) for message in self._guess.known_turns.messages()]

    # What is answered

    @property
    def is_busy(self) -> bool:
        """Whether a reply is made, or heard."""
        return any(True for _ in self._replies)

    def is_heard(self, segment_id: int) -> bool:
        """Whether a reply of this segment is made, or heard."""
        return any(reply.segment_id == segment_id for reply in self._replies)

    def until_past_is_known(self, segment_id: int, ticket: Ticket) -> Generator[Wait, float, None]:
        """Waits while an older reply is played, then a little for the last report about one that was cut."""
        while self._replies.is_playing(segment_id) and not ticket.is_cancelled:
            yield Wait()
        left_ms: float = HEARD_WAIT_MS
        while left_ms > 0 and self._replies.before(segment_id) and not ticket.is_cancelled:
            left_ms = yield Wait(at_most_ms=left_ms)
        if not ticket.is_cancelled:
            for reply in self._replies.before(segment_id):
                self._replies.settle(reply)

    def answer(self, segment_id: int, ticket: Ticket) -> Answer:
        """The spoken reply to what the user said in a segment. A message that can't be answered was never said."""
        is_enough = partial(is_long_enough, most_tokens=self._session.generation.max_new_tokens)
        chunks = self._session.generate(
            StreamingConfig(),
            turn_id=segment_id,
            reply_id=segment_id,
            must_speak=True,
            is_enough=is_enough,
            is_stopped=lambda: ticket.is_cancelled,
        )
        try:
            with self._written_if_closed():
                return (yield from self._reply(chunks, segment_id, is_spoken=True))
        except RefusedError:
            self.drop(segment_id)
            raise

    def generate(
        self,
        streaming: StreamingConfig | None,
        generation: Generation | None,
        segment_id: int,
        ticket: Ticket,
        *,
        can_speak: bool,
    ) -> Answer:
        """The reply to what was read last."""
        self._guess.drop()
        is_spoken = can_speak and (streaming or self._session.streaming).generate_audio
        chunks = self._session.generate(
            streaming, generation, reply_id=segment_id, is_stopped=lambda: ticket.is_cancelled
        )
        with self._written_if_closed():
            return (yield from self._reply(chunks, segment_id, is_spoken=is_spoken))

    def complete(self, request: StreamingRequest, segment_id: int, ticket: Ticket, *, can_speak: bool) -> Answer:
        """Reads the messages of a request, and answers them."""
        self._guess.drop()
        is_spoken = can_speak and request.streaming.generate_audio
        chunks = self._session.complete(request, new_id=segment_id, is_stopped=lambda: ticket.is_cancelled)
        with self._written_if_closed():
            return (yield from self._reply(chunks, segment_id, is_spoken=is_spoken, is_read=True))

    def hear(self, played: Played) -> None:
        """A report of the speaker."""
        segment_id = played.segment.segment_id
        reply = self._replies.played(segment_id, played.text_end, played.samples, is_last=played.fin)
        if reply and reply.turn_id not in self._uncommitted:
            self._write(past.playing(reply))

    def lose_speaker(self, *, for_good: bool) -> None:
        self.knows_heard &= not for_good
        self._replies.lose(for_good=for_good)

    def fail(self, segment_id: int) -> None:
        """Nothing more comes of the segment."""
        self._replies.fail(segment_id)
        self.reject(segment_id)

    def rollback(self) -> RollbackResult:
        self._guess.drop()
        result = self._session.rollback()
        if result.success:
            turns = self._session.turns
            self._replies.keep(lambda reply: any(reply.turn_id == turn.turn_id for turn in turns if turn.reply))
            self._write_whole()
        return result

    def reset(self) -> None:
        self._guess.forget()
        self._uncommitted.clear()
        self._session.reset()
        self._replies.clear()
        self._write_whole()

    # Before and after

    def past(self) -> Past:
        """What is committed."""
        given_up = self._session.given_up if self._session.given_up_for in self._uncommitted else ()
        known = (*given_up, *self._guess.known_turns)
        turns = Turns(turn for turn in known if turn.turn_id not in self._uncommitted)
        unheard = {
            reply.turn_id: Unheard(reply.turn_id, reply.segment_id, reply.heard_by_now)
            for reply in self._replies
            if turns.find(reply.turn_id)
        }
        return Past(self._session.settings, turns, unheard)

    def take_up(self, known: Past) -> None:
        """Goes on after a crash. What was being played then is heard to wherever the speaker still says."""
        self._session.turns = known.turns.copy()
        if known.settings is not None:
            self._session.configure(known.settings)
        for unheard in known.unheard.values():
            turn = self._session.turns.find(unheard.turn_id)
            reply = Reply(unheard.segment_id, unheard.turn_id, self.knows_heard, turn.reply or "" if turn else "")
            reply.heard_end, reply.is_sent, reply.is_cut = unheard.text_end, True, True
            self._replies.begin(reply)

    def end(self) -> None:
        """Nothing is written about it any more."""
        self._write(past.ended())
        self._has_ended = True

    def _reply(
        self,
        chunks: Work[StreamingChunk | None, StreamingResponse],
        segment_id: int,
        *,
        is_spoken: bool,
        is_read: bool = False,
    ) -> Answer:
        """Passes the chunks on, speaks them, and keeps track of what is sent. is_read: its message was read by it."""
        if is_spoken and segment_id in self._spoken:
            raise RefusedError("bad_request", f"segment {segment_id}: expected a new one, this has its reply already")
        reply: Reply | None = None
        try:
            with closing(chunks):
                while True:
                    chunk = next(chunks)
                    if chunk is None:
                        yield None
                        continue
                    if reply is None:
                        reply = self._begin(segment_id, is_spoken=is_spoken, is_read=is_read)
                    self._send(reply, chunk.text_delta)
                    yield chunk
                    if is_spoken and chunk.text_delta:
                        yield self._fragment(chunk.text_delta, len(reply.text))
        except StopIteration as done:
            response: StreamingResponse = done.value
        finally:
            self._log_turn(segment_id)
        if reply is not None:
            self._replies.sent(reply)
        if is_spoken:
            yield self._fragment("", len(response.full_text), fin=True)
        return response

    def _begin(self, segment_id: int, *, is_spoken: bool, is_read: bool) -> Reply:
        turn_id = self._session.answered_id
        assert turn_id is not None
        reply = Reply(segment_id, turn_id, is_spoken and self.knows_heard)
        self._replies.begin(reply)
        if is_spoken:
            self._spoken.append(segment_id)
        if is_read or self._session.usage.dropped_turns:
            self._write_whole()
        elif turn_id not in self._uncommitted:
            self._write(past.replied(reply, 0, ""))
        return reply

    def _send(self, reply: Reply, delta: str) -> None:
        start, reply.text = len(reply.text), reply.text + delta
        if delta and reply.turn_id not in self._uncommitted:
            self._write(past.replied(reply, start, delta))

    def _settle(self, reply: Reply) -> None:
        self._session.heard(reply.heard_end, reply.turn_id)
        if reply.turn_id not in self._uncommitted:
            self._write(past.heard(reply.turn_id, reply.heard_end))

    def _fragment(self, text: str, end: int, *, fin: bool = False) -> Text:
        """A piece of a spoken reply; with it, the reply has `end` code points."""
        language = self._session.settings.language
        return Text(port="text", text=text, text_start=end - len(text), text_end=end, fin=fin, language=language)

    def _fit_unanswered(self, before_id: int) -> None:
        """Words that nobody answers take no more room than others. What doesn't fit even alone is not remembered."""
        self._guess.drop()
        try:
            if self._session.fit():
                self._write_whole()
        except RefusedError as refused:
            last = self._session.turns.last
            if last is not None and last.reply is None and last.turn_id < before_id:
                name = self._session.session_id
                log.warning("session=%s segment=%d: not remembered: %s", name, last.turn_id, refused)
                self.drop(last.turn_id)

    @contextmanager
    def _written_if_closed(self) -> Iterator[None]:
        """What is refused has changed nothing; what is closed half-way stays said."""
        try:
            yield
        except RefusedError:
            raise
        except BaseException:
            self._write_whole()
            raise

    def _write_whole(self) -> None:
        self._write(self.past().whole())

    def _write(self, entry: Entry) -> None:
        if not self._has_ended:
            self._journal.add(self._session.session_id, entry)

    def _log_turn(self, segment_id: int) -> None:
        usage = self._session.usage
        ahead = self._guess.count_ahead(usage.reused_tokens)
        log.info(
            "turn session=%s segment=%d prefilled=%d ahead=%d reused=%d replayed=%d generated=%d",
            *(self._session.session_id, segment_id, usage.computed_tokens, ahead, usage.reused_tokens - ahead),
            *(usage.replayed_tokens, usage.generated_tokens),
        )
