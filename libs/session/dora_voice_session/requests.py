"""What the `request` and `result` ports of the llm node carry: one JSON document each."""

from __future__ import annotations

import reprlib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dora_voice_session.refused import Code, RefusedError
from dora_voice_session.schema import (
    LONGEST_ID,
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

KIND = "what the document is"
RequestId = Annotated[str, Field(max_length=LONGEST_ID)]

# Requests


class _Request(Document):
    request_id: RequestId | None = Field(default=None, description="comes back with every result of this")


class _OfSession(_Request):
    session_id: SessionId


class Settings(_OfSession):
    """Settings of one session, from now on. Answered by Done."""

    type: Literal["session"] = Field(description=KIND)
    settings: SessionSettings = Field(description="what changes")


class _WithMessages(_Request):
    request: StreamingRequest = Field(description="what is said, and how it is to be answered")

    @property
    def session_id(self) -> str:
        return self.request.session_id


class Prefill(_WithMessages):
    """Messages that are read, but not answered yet. Answered by Prefilled."""

    type: Literal["prefill"] = Field(description=KIND)


class Edit(_WithMessages):
    """The whole conversation, in place of what was said. Answered by Prefilled."""

    type: Literal["edit"] = Field(description=KIND)


class Generate(_OfSession):
    """Answers what was read. Answered by Chunks and a Responded."""

    type: Literal["generate"] = Field(description=KIND)
    streaming: StreamingConfig | None = Field(default=None, description="null: as the request before said")
    generation: Generation | None = Field(default=None, description="null: as the request before, or the session, said")


class Complete(_WithMessages):
    """Prefill and generate in one. Answered by one Responded."""

    type: Literal["complete"] = Field(description=KIND)


class Stop(_OfSession):
    """The running reply ends where it is. Answered by Done."""

    type: Literal["stop"] = Field(description=KIND)


class Rollback(_OfSession):
    """Back to the snapshot. Answered by RolledBack."""

    type: Literal["rollback"] = Field(description=KIND)


class Reset(_OfSession):
    """Nothing was said. The settings stay. Answered by Done."""

    type: Literal["reset"] = Field(description=KIND)


class End(_OfSession):
    """The session is forgotten. Answered by Done."""

    type: Literal["end"] = Field(description=KIND)


class Recall(_OfSession):
    """Asks what was said. Answered by History."""

    type: Literal["history"] = Field(description=KIND)


class Describe(_OfSession):
    """Asks what the model takes. Answered by Model. Begins no session."""

    type: Literal["model"] = Field(description=KIND)


Request = Annotated[
    Settings | Prefill | Edit | Generate | Complete | Stop | Rollback | Reset | End | Recall | Describe,
    Field(discriminator="type"),
]
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)


def parse(document: str) -> Request:
    """Raises RefusedError naming the first field that can't be read, what was expected, and what was found."""
    try:
        return REQUEST.validate_json(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"]) or "document"
        # What isn't there has no value: pydantic shows what it is missing from.
        found = "" if first["type"] == "missing" else f", found {reprlib.repr(first['input'])}"
        raise RefusedError("bad_request", f"{where}: {first['msg']}{found}") from error


def request_id_of(document: str) -> str | None:
    """The `request_id` of a document that may be no request at all; None if it has none that could be one."""
    try:
        return _Labelled.model_validate_json(document).request_id
    except ValidationError:
        return None


class _Labelled(BaseModel):
    """A request as far as it takes to answer it."""

    model_config = ConfigDict(strict=True)

    request_id: RequestId | None = None


# Results


class _Result(Document):
    session_id: SessionId
    request_id: str | None = Field(default=None, description="of the request that this belongs to")


class Done(_Result):
    type: Literal["done"] = Field(default="done", description=KIND)


class Prefilled(_Result):
    type: Literal["prefilled"] = Field(default="prefilled", description=KIND)
    result: PrefillResult = Field(description="what the prefill took")


class Chunk(_Result):
    type: Literal["chunk"] = Field(default="chunk", description=KIND)
    chunk: StreamingChunk = Field(description="the next piece of the reply")


class Responded(_Result):
    type: Literal["response"] = Field(default="response", description=KIND)
    response: StreamingResponse = Field(description="the whole reply")


class RolledBack(_Result):
    type: Literal["rollback"] = Field(default="rollback", description=KIND)
    result: RollbackResult = Field(description="whether the session is back, or why not")


class History(_Result):
    type: Literal["history"] = Field(default="history", description=KIND)
    messages: list[ChatMessage] = Field(description="what was said; of replies, what was heard")


class Model(_Result):
    type: Literal["model"] = Field(default="model", description=KIND)
    name: str = Field(description="how the model is called")
    parts: list[str] = Field(description="kinds of content that a message may have")
    fields: list[str] = Field(description="optional fields of a request that have an effect")


class Failed(_Result):
    """The request was not served; nothing has changed."""

    type: Literal["error"] = Field(default="error", description=KIND)
    code: Code = Field(description="which kind of refusal it is; these names stay")
    error: str = Field(description="which field, its value, and what was expected")


Result = Annotated[
    Done | Prefilled | Chunk | Responded | RolledBack | History | Model | Failed, Field(discriminator="type")
]
RESULT: TypeAdapter[Result] = TypeAdapter(Result)
