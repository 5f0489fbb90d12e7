"""What the `request` and `result` ports of the llm node carry: one JSON document each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dora_voice_session.refused import Code, RefusedError
from dora_voice_session.schema import (
    ChatMessage,
    Document,
    Generation,
    PrefillResult,
    RollbackResult,
    SessionId,
    SessionSettings,
    StreamingChunk,
    StreamingConfig,
    StreamingRequest,
    StreamingResponse,
)

# Requests


class _Request(Document):
    request_id: str | None = Field(default=None, max_length=256, description="comes back with every result of this")


class Settings(_Request):
    """Settings of one session, from now on. Answered by Done."""

    type: Literal["session"]
    session_id: SessionId
    settings: SessionSettings


class Prefill(_Request):
    """Messages that are read, but not answered yet. Answered by Prefilled."""

    type: Literal["prefill"]
    request: StreamingRequest

    @property
    def session_id(self) -> str:
        return self.request.session_id


class Edit(_Request):
    """The whole conversation, in place of what was said. Answered by Prefilled."""

    type: Literal["edit"]
    request: StreamingRequest

    @property
    def session_id(self) -> str:
        return self.request.session_id


class Generate(_Request):
    """Answers what was read. Answered by Chunks and a Responded."""

    type: Literal["generate"]
    session_id: SessionId
    streaming: StreamingConfig | None = Field(default=None, description="null: as the request before said")
    generation: Generation | None = Field(default=None, description="null: as the request before, or the session, said")


class Complete(_Request):
    """Prefill and generate in one. Answered by one Responded."""

    type: Literal["complete"]
    request: StreamingRequest

    @property
    def session_id(self) -> str:
        return self.request.session_id


class Act(_Request):
    """stop: the running reply ends where it is. rollback: back to the snapshot (answered by RolledBack). reset: nothing
    was said. end: the session is forgotten. history: what was said (answered by History). Else answered by Done."""

    type: Literal["stop", "rollback", "reset", "end", "history"]
    session_id: SessionId


Request = Annotated[Settings | Prefill | Edit | Generate | Complete | Act, Field(discriminator="type")]
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)


def parse(document: str) -> Request:
    """Raises RefusedError naming the first field that can't be read, and what was expected."""
    try:
        return REQUEST.validate_json(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"]) or "document"
        raise RefusedError("bad_request", f"{where}: {first['msg']}") from error


# Results


class _Result(Document):
    session_id: SessionId
    request_id: str | None = Field(default=None, description="of the request that this belongs to")


class Done(_Result):
    type: Literal["done"] = "done"


class Prefilled(_Result):
    type: Literal["prefilled"] = "prefilled"
    result: PrefillResult


class Chunk(_Result):
    type: Literal["chunk"] = "chunk"
    chunk: StreamingChunk


class Responded(_Result):
    type: Literal["response"] = "response"
    response: StreamingResponse


class RolledBack(_Result):
    type: Literal["rollback"] = "rollback"
    result: RollbackResult


class History(_Result):
    type: Literal["history"] = "history"
    messages: list[ChatMessage] = Field(description="what was said; of replies, what was heard")


class Failed(_Result):
    """The request was not served; nothing has changed."""

    type: Literal["error"] = "error"
    code: Code = Field(description="stable")
    error: str = Field(description="which field, its value, and what was expected")


Result = Annotated[Done | Prefilled | Chunk | Responded | RolledBack | History | Failed, Field(discriminator="type")]
RESULT: TypeAdapter[Result] = TypeAdapter(Result)
