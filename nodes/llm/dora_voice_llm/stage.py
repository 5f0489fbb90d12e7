"""Answers what the user said, one segment after the other, and serves requests: many sessions in one model."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import closing, suppress

from dora_voice.messages import Control, Message, Played, Segment, Text
from dora_voice.stage import Surroundings, Wait, Work
from dora_voice_llm.conversations import Conversations
from dora_voice_llm.fair_lock import Ticket
from dora_voice_llm.request_port import RequestPort
from dora_voice_llm.service import Service
from dora_voice_llm.transcripts import Transcripts
from dora_voice_session.capabilities import Capabilities
from dora_voice_session.pool import SessionPool
from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import StreamingChunk

log = logging.getLogger("dora_voice.llm")


class LlmStage:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._transcripts = Transcripts()
        self._uncommitted: set[Segment] = set()
        """Whose words wait for their turn, and are speculative still."""

    def started(self, surroundings: Surroundings) -> None:
        can_speak = "text" in surroundings.wired_outputs
        speaking = ["generate_audio"] if can_speak else []
        able = Capabilities.of(self._service.model, self._service.name, speaking)
        pool = SessionPool(
            self._service.model,
            self._service.limits,
            settings=self._service.settings,
            capabilities=able,
            clock=surroundings.clock,
        )
        self._conversations = Conversations(
            pool,
            self._service.history_folder,
            surroundings.run,
            is_restart=surroundings.restarts > 0,
            knows_heard="played" in surroundings.wired,
        )
        self._request_port = RequestPort(self._conversations, able, can_speak=can_speak)

    def process(self, message: Message) -> Work | None:
        if isinstance(message, Played):
            self._hear(message)
        elif isinstance(message, Control):
            self._obey(message)
        elif isinstance(message, Text) and message.port == "text":
            return self._take(message)
        elif isinstance(message, Text) and message.port == "hypothesis":
            return self._read_ahead(message)
        elif isinstance(message, Text):
            return self._request_port.serve(message)
        return None

    def late(self, message: Message) -> None:
        """What the user said in a segment that was flushed before it could be answered stays said."""
        if isinstance(message, Text) and (user := self._transcripts.add(message)) and message.error is None:
            self._stays_said(message, user)

    def lost(self, port: str, for_good: bool) -> None:
        if port == "played":
            self._conversations.lose_speaker(for_good=for_good)

    def flushed(self, segment: Segment) -> None:
        if conversation := self._conversations.find(segment.session_id):
            conversation.flush(segment.segment_id)

    def dropped(self, segment: Segment) -> None:
        self._transcripts.drop(segment)
        if conversation := self._conversations.find(segment.session_id):
            conversation.drop(segment.segment_id)

    def failed(self, segment: Segment) -> None:
        self._transcripts.drop(segment)
        if conversation := self._conversations.find(segment.session_id):
            conversation.fail(segment.segment_id)

    def finish(self, session_id: str) -> Work:
        with self._conversations.ticket(session_id) as ticket:
            yield from ticket.acquire()

    def ended(self, session_id: str) -> None:
        self._transcripts.end(session_id)
        self._conversations.cancel(session_id)
        self._conversations.end(session_id)

    def close(self) -> None:
        self._conversations.close()

    def _hear(self, played: Played) -> None:
        if conversation := self._conversations.find(played.segment.session_id):
            conversation.hear(played)

    def _obey(self, control: Control) -> None:
        if control.verb == "commit":
            self._uncommitted.discard(control.segment)
            if conversation := self._conversations.find(control.segment.session_id):
                conversation.commit(control.segment.segment_id)

    def _read_ahead(self, hypothesis: Text) -> Generator[None, None, None]:
        if hypothesis.fin:
            # The text itself comes now.
            return
        session_id, segment_id = hypothesis.segment
        guess = hypothesis.text.strip()
        if guess and self._conversations.is_free(session_id):
            # What a guess is refused for, its text may not be.
            with suppress(RefusedError), self._conversations.ticket(session_id) as ticket:
                yield from self._conversations.get(session_id).guess(segment_id, guess, ticket)

    def _take(self, fragment: Text) -> Work:
        session_id, segment_id = fragment.segment
        user = self._transcripts.add(fragment)
        if user:
            yield from self._answer(fragment, user)
        elif fragment.fin:
            if conversation := self._conversations.find(session_id):
                conversation.reject(segment_id)
            yield Text(port="text", text="", text_start=0, text_end=0, fin=True)

    def _answer(self, message: Text, user: str) -> Work:
        session_id, segment_id = message.segment
        try:
            with self._conversations.ticket(session_id) as ticket:
                is_speculative = yield from self._wait(message, user, ticket)
                conversation = self._conversations.get(session_id)
                conversation.say(segment_id, user, is_speculative=is_speculative)
                yield from conversation.until_past_is_known(segment_id, ticket)
                with closing(conversation.answer(segment_id, ticket)) as answer:
                    for made in answer:
                        if not isinstance(made, StreamingChunk):
                            yield made
        except RefusedError as refused:
            log.warning("session=%s segment=%d: not answered: %s", session_id, segment_id, refused)
            yield Text(port="text", text="", fin=True, error=f"{refused.code}: {refused}")

    def _wait(self, message: Text, user: str, ticket: Ticket) -> Generator[Wait, None, bool]:
        """Until it is the message's turn. Returns whether it is speculative then: a `commit` may have come."""
        if message.speculative:
            self._uncommitted.add(message.segment)
        try:
            yield from ticket.acquire()
            return message.segment in self._uncommitted
        except GeneratorExit:
            # Said, until the end of the segment tells whether it stays said (flush) or never was (drop).
            with suppress(RefusedError):
                self._conversations.get(message.segment.session_id).say(
                    message.segment.segment_id, user, is_speculative=True
                )
            raise
        finally:
            self._uncommitted.discard(message.segment)

    def _stays_said(self, message: Text, user: str) -> None:
        session_id, segment_id = message.segment
        with suppress(RefusedError):
            self._conversations.get(session_id).stays_said(segment_id, user)
