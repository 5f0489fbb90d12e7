"""Answers what the user said, one segment after the other, and serves requests: many sessions in one model."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import closing

from dora_voice.messages import Control, Message, Played, Segment, Text
from dora_voice.stage import Surroundings, Work
from dora_voice_llm.conversation import Conversation
from dora_voice_llm.desk import Desk
from dora_voice_llm.journal import Journal
from dora_voice_llm.service import Service
from dora_voice_llm.transcripts import Transcripts
from dora_voice_session.capabilities import Capabilities
from dora_voice_session.pool import SessionPool
from dora_voice_session.refused import RefusedError

log = logging.getLogger("dora_voice.llm")


class LlmStage:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._transcripts = Transcripts()
        self._conversations: dict[str, Conversation] = {}

    def started(self, surroundings: Surroundings) -> None:
        self._knows_heard = "played" in surroundings.wired
        can_speak = "text" in surroundings.wired_outputs
        self._pool = SessionPool(
            self._service.model,
            self._service.limits,
            settings=self._service.settings,
            capabilities=_capabilities(self._service, can_speak=can_speak),
            clock=surroundings.clock,
        )
        self._desk = Desk(self, can_speak=can_speak)
        path = self._service.history_folder / f"llm-{surroundings.run}.jsonl" if surroundings.run else None
        self._journal = Journal(path, is_restart=surroundings.restarts > 0)
        for session_id, past in list(self._journal.past.items()):
            self.conversation(session_id).take_up(past)
            log.info("session=%s: goes on after a restart with %d turns", session_id, len(past.turns))

    def process(self, message: Message) -> Work | None:
        if isinstance(message, Played):
            self._hear(message)
        elif isinstance(message, Control):
            self._obey(message)
        elif isinstance(message, Text):
            return {"text": self._take, "hypothesis": self._read_ahead, "request": self._desk.serve}[message.port](
                message
            )
        return None

    def late(self, message: Message) -> None:
        """What the user said in a segment that was flushed before it could be answered stays said."""
        if isinstance(message, Text) and (user := self._transcripts.add(message)) and message.error is None:
            self._say(message, user)

    def lost(self, port: str, for_good: bool) -> None:
        """Nobody tells any more what is heard of the replies that are being played."""
        if port != "played":
            return
        self._knows_heard &= not for_good
        for conversation in self._conversations.values():
            conversation.knows_heard &= not for_good
            conversation.replies.lose()

    def flushed(self, segment: Segment) -> None:
        if conversation := self._conversations.get(segment.session_id):
            conversation.replies.flush(segment.segment_id)

    def dropped(self, segment: Segment) -> None:
        self._transcripts.drop(segment)
        if conversation := self._conversations.get(segment.session_id):
            conversation.drop(segment.segment_id)

    def failed(self, segment: Segment) -> None:
        self._transcripts.drop(segment)
        if conversation := self._conversations.get(segment.session_id):
            conversation.replies.fail(segment.segment_id)
            conversation.drop_guess(segment.segment_id)

    def finish(self, session_id: str) -> Work:
        if conversation := self._conversations.get(session_id):
            with conversation.line.place() as place:
                yield from place.come_first()

    def ended(self, session_id: str) -> None:
        self._transcripts.end(session_id)
        self._pool.end(session_id)
        if conversation := self._conversations.pop(session_id, None):
            conversation.line.stop()
            self._journal.ended(session_id)

    def close(self) -> None:
        self._journal.close()

    def conversation(self, session_id: str) -> Conversation:
        """The session of this name, begun if there is none. Raises RefusedError if there are too many."""
        for expired in self._pool.expire():
            self.ended(expired)
        session = self._pool.get(session_id)
        if session_id not in self._conversations:
            self._conversations[session_id] = Conversation(session, self._journal, knows_heard=self._knows_heard)
        return self._conversations[session_id]

    def known_conversation(self, session_id: str) -> Conversation:
        """The session of this name. Raises RefusedError if it hasn't begun."""
        if session_id not in self._conversations:
            raise RefusedError("unknown_session", f"session {session_id}: expected one that has begun")
        return self.conversation(session_id)

    def _hear(self, played: Played) -> None:
        if conversation := self._conversations.get(played.segment.session_id):
            conversation.hear(played)

    def _obey(self, control: Control) -> None:
        conversation = self._conversations.get(control.segment.session_id)
        if conversation and control.verb == "commit":
            conversation.commit(control.segment.segment_id)

    def _read_ahead(self, hypothesis: Text) -> Generator[None, None, None]:
        session_id, segment_id = hypothesis.segment
        if guess := hypothesis.text.strip():
            yield from self.conversation(session_id).read_ahead(segment_id, guess)

    def _take(self, fragment: Text) -> Work:
        user = self._transcripts.add(fragment)
        if user:
            yield from self._answer(fragment, user)
        elif fragment.fin:
            if conversation := self._conversations.get(fragment.segment.session_id):
                conversation.drop_guess(fragment.segment.segment_id)
            yield Text(port="text", text="", text_start=0, text_end=0, fin=True)

    def _say(self, message: Text, user: str) -> Conversation:
        conversation = self.conversation(message.segment.session_id)
        conversation.say(message.segment.segment_id, user, is_speculative=message.speculative)
        return conversation

    def _answer(self, message: Text, user: str) -> Work:
        segment_id = message.segment.segment_id
        conversation = self._say(message, user)
        spoken = 0
        with conversation.line.place() as place:
            yield from place.come_first()
            yield from conversation.until_past_is_known(segment_id)
            try:
                with closing(conversation.answer(segment_id, place)) as chunks:
                    for chunk in chunks:
                        delta = chunk.text_delta if chunk else ""
                        spoken += len(delta)
                        yield conversation.fragment(delta, spoken) if delta else None
            except RefusedError:
                conversation.drop(segment_id)
                raise
        yield conversation.fragment("", spoken, fin=True)


def _capabilities(service: Service, *, can_speak: bool) -> Capabilities:
    speaking = {"generate_audio"} if can_speak else set()
    return Capabilities(service.name, frozenset(service.model.template_switches | speaking))
