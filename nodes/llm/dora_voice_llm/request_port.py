"""Serves the `request` port: each document gets its results on `result`, the last of them says how it ended."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any

from dora_voice.messages import Message, Text
from dora_voice.stage import Wait, Work
from dora_voice_llm.conversation import Answer, Conversation
from dora_voice_llm.conversations import Conversations
from dora_voice_llm.fair_lock import Ticket
from dora_voice_session import requests
from dora_voice_session.capabilities import Capabilities
from dora_voice_session.refused import RefusedError
from dora_voice_session.requests import Request, Result
from dora_voice_session.schema import RollbackResult, StreamingChunk

Serving = Generator[Message | Wait | None, Any, Result]
"""Messages to send, and then the last result."""

CANCELS = ("stop", "rollback", "reset", "end")
"""Requests that end the work that others are at."""


class RequestPort:
    """`can_speak`: the node's spoken replies go somewhere."""

    def __init__(self, conversations: Conversations, capabilities: Capabilities, *, can_speak: bool) -> None:
        self._conversations = conversations
        self._capabilities = capabilities
        self._can_speak = can_speak

    def serve(self, message: Text) -> Work:
        """The last result has the `fin` that the request had."""
        session_id, segment_id = message.segment
        request_id = requests.request_id_of(message.text)
        try:
            request = requests.parse(message.text)
            if request.session_id != session_id:
                raise RefusedError(
                    "bad_request", f"session_id={request.session_id!r}: the message's metadata say {session_id!r}"
                )
            last = yield from self._serve(request, segment_id)
        except RefusedError as refused:
            last = requests.Failed(session_id=session_id, code=refused.code, error=str(refused))
        yield _message(last, request_id, fin=message.fin)

    def _serve(self, request: Request, segment_id: int) -> Serving:
        session_id = request.session_id
        if request.type == "model":
            able = self._capabilities
            parts, fields = sorted(able.parts), sorted(able.honoured)
            return requests.Model(session_id=session_id, name=able.name, parts=parts, fields=fields)
        if request.type == "history":
            return requests.History(session_id=session_id, messages=self._conversations.known(session_id).history())
        if request.type in CANCELS:
            self._conversations.cancel(session_id)
        with self._conversations.ticket(session_id, is_urgent=request.type in CANCELS) as ticket:
            # A checkpoint: those who wait for the loudspeaker look up, and see that they are cancelled.
            yield None
            yield from ticket.acquire()
            if request.type == "rollback":
                return requests.RolledBack(session_id=session_id, result=self._roll_back(session_id))
            if request.type in ("stop", "reset", "end"):
                return self._act(request.type, session_id)
            begins = request.type != "generate"
            conversation = self._conversations.get(session_id) if begins else self._conversations.known(session_id)
            if request.type == "session":
                conversation.configure(request.settings)
                return requests.Done(session_id=session_id)
            # Several requests may share a segment: the replies to those before this one are past, too.
            yield from conversation.until_past_is_known(segment_id + 1, ticket)
            if conversation.is_heard(segment_id):
                raise RefusedError("busy", f"segment {segment_id}: stopped while the reply before was being heard")
            return (yield from self._compute(request, segment_id, conversation, ticket))

    def _roll_back(self, session_id: str) -> RollbackResult:
        try:
            return self._conversations.known(session_id).rollback()
        except RefusedError as refused:
            return RollbackResult(success=False, reason=str(refused))

    def _act(self, what: str, session_id: str) -> Result:
        conversation = self._conversations.known(session_id)
        if what == "reset":
            conversation.reset()
        if what == "end":
            self._conversations.end(session_id)
        return requests.Done(session_id=session_id)

    def _compute(self, request: Request, segment_id: int, conversation: Conversation, ticket: Ticket) -> Serving:
        session_id = request.session_id
        if request.type == "generate":
            answer = conversation.generate(
                request.streaming, request.generation, segment_id, ticket, can_speak=self._can_speak
            )
            return (yield from _answered(answer, session_id, request.request_id, sends_chunks=True))
        if request.type == "complete":
            answer = conversation.complete(request.request, segment_id, ticket, can_speak=self._can_speak)
            return (yield from _answered(answer, session_id, request.request_id, sends_chunks=False))
        assert request.type == "prefill" or request.type == "edit"
        result = yield from conversation.prefill(request.request, segment_id, replace=request.type == "edit")
        return requests.Prefilled(session_id=session_id, result=result)


def _answered(answer: Answer, session_id: str, request_id: str | None, *, sends_chunks: bool) -> Serving:
    with closing(answer):
        while True:
            try:
                made = next(answer)
            except StopIteration as done:
                return requests.Responded(session_id=session_id, response=done.value)
            if not isinstance(made, StreamingChunk):
                yield made
            elif sends_chunks:
                yield _message(requests.Chunk(session_id=session_id, chunk=made), request_id)
            else:
                # A checkpoint with each: otherwise nobody gets through to the reply before its end.
                yield None


def _message(result: Result, request_id: str | None, *, fin: bool = False) -> Text:
    document = result.model_copy(update={"request_id": request_id})
    return Text(port="result", text=document.model_dump_json(exclude_none=True), fin=fin)
