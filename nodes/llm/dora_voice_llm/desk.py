"""Serves the `request` port: each document gets its results on `result`, the last of them says how it ended."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any, Protocol

from dora_voice.messages import Message, Text
from dora_voice.stage import Wait, Work
from dora_voice_llm.conversation import Conversation
from dora_voice_llm.line import Place
from dora_voice_session import requests
from dora_voice_session.refused import RefusedError
from dora_voice_session.requests import Act, Complete, Edit, Generate, Prefill, Result, Settings
from dora_voice_session.schema import ChatMessage, RollbackResult, StreamingResponse

Serving = Generator[Message | Wait | None, Any, Result]
"""Messages to send, and then the last result."""


class Sessions(Protocol):
    def conversation(self, session_id: str) -> Conversation:
        """The session of this name, begun if there is none. Raises RefusedError if there are too many."""
        ...

    def known_conversation(self, session_id: str) -> Conversation:
        """The session of this name. Raises RefusedError if it hasn't begun."""
        ...

    def ended(self, session_id: str) -> None: ...


class Desk:
    """`can_speak`: the node's spoken replies go somewhere."""

    def __init__(self, sessions: Sessions, *, can_speak: bool) -> None:
        self._sessions = sessions
        self._can_speak = can_speak

    def serve(self, message: Text) -> Work:
        """The last result has the `fin` that the request had."""
        session_id, segment_id = message.segment
        request_id = None
        try:
            request = requests.parse(message.text)
            request_id = request.request_id
            if request.session_id != session_id:
                raise RefusedError(
                    "bad_request", f"session_id={request.session_id!r}: the message's metadata say {session_id!r}"
                )
            last = yield from self._act(request) if isinstance(request, Act) else self._work(request, segment_id)
        except RefusedError as refused:
            last = requests.Failed(session_id=session_id, code=refused.code, error=str(refused))
        yield _message(last, request_id, fin=message.fin)

    def _act(self, act: Act) -> Serving:
        """What doesn't wait for its turn, but ends the work that others are at."""
        session_id = act.session_id
        try:
            conversation = self._sessions.known_conversation(session_id)
        except RefusedError as refused:
            if act.type != "rollback":
                raise
            return _rolled_back(session_id, RollbackResult(success=False, reason=str(refused)))
        if act.type == "history":
            said = [ChatMessage.model_validate(message) for message in conversation.session.turns.messages()]
            return requests.History(session_id=session_id, messages=said)
        conversation.line.stop()
        with conversation.line.place() as place:
            yield from place.come_first()
            if act.type == "rollback":
                return _rolled_back(session_id, conversation.rollback())
            if act.type == "reset":
                conversation.reset()
            if act.type == "end":
                self._sessions.ended(session_id)
        return requests.Done(session_id=session_id)

    def _work(self, request: Settings | Prefill | Edit | Generate | Complete, segment_id: int) -> Serving:
        """What waits for its turn."""
        is_new = not isinstance(request, Generate)
        find = self._sessions.conversation if is_new else self._sessions.known_conversation
        conversation = find(request.session_id)
        with conversation.line.place() as place:
            yield from place.come_first()
            if isinstance(request, Settings):
                conversation.session.configure(request.settings)
                conversation.write_down()
                return requests.Done(session_id=request.session_id)
            yield from conversation.until_past_is_known(segment_id)
            if isinstance(request, Generate):
                return (yield from self._generate(request, segment_id, conversation, place, sends_chunks=True))
            prefilled = yield from self._prefill(request, segment_id, conversation)
            if not isinstance(request, Complete):
                return prefilled
            generate = Generate(type="generate", session_id=request.session_id, request_id=request.request_id)
            return (yield from self._generate(generate, segment_id, conversation, place, sends_chunks=False))

    def _prefill(self, request: Prefill | Edit | Complete, segment_id: int, conversation: Conversation) -> Serving:
        what = request.request
        if isinstance(request, Complete):
            what = what.model_copy(update={"is_last_chunk": True})
        if replace := isinstance(request, Edit):
            conversation.replies.clear()
        result = yield from conversation.session.prefill(what, new_id=segment_id, replace=replace)
        conversation.write_down()
        return requests.Prefilled(session_id=request.session_id, result=result)

    def _generate(
        self, request: Generate, segment_id: int, conversation: Conversation, place: Place, *, sends_chunks: bool
    ) -> Serving:
        streaming = request.streaming or conversation.session.streaming
        is_spoken = self._can_speak and streaming.generate_audio
        spoken = 0
        with closing(conversation.generate(segment_id, request, place, is_spoken=is_spoken)) as chunks:
            while True:
                try:
                    chunk = next(chunks)
                except StopIteration as done:
                    response: StreamingResponse = done.value
                    break
                if chunk is None:
                    yield None
                    continue
                if sends_chunks:
                    yield _message(requests.Chunk(session_id=request.session_id, chunk=chunk), request.request_id)
                if is_spoken and chunk.text_delta:
                    spoken += len(chunk.text_delta)
                    yield conversation.fragment(chunk.text_delta, spoken)
        if is_spoken:
            yield conversation.fragment("", spoken, fin=True)
        return requests.Responded(session_id=request.session_id, response=response)


def _rolled_back(session_id: str, result: RollbackResult) -> Result:
    return requests.RolledBack(session_id=session_id, result=result)


def _message(result: Result, request_id: str | None, *, fin: bool = False) -> Text:
    document = result.model_copy(update={"request_id": request_id})
    return Text(port="result", text=document.model_dump_json(exclude_none=True), fin=fin)
