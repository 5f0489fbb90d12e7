"""The messages of /ws/stream: one conversation that goes on, with the requests and results of the session schema."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from dora_voice_gateway.errors import Code
from dora_voice_session import requests
from dora_voice_session.schema import LONGEST_ID, Base64, Document

KIND = "what the message is"
RequestId = Annotated[str, Field(max_length=LONGEST_ID)]


class Audio(Document):
    """The next piece of what the user says. Answered by Transcript and Prefilled when the utterance has ended.

    After an Error, what was said is forgotten, and what comes up to the last chunk.
    """

    type: Literal["audio"] = Field(description=KIND)
    session_id: str = Field(min_length=1, max_length=LONGEST_ID, description="which conversation")
    request_id: RequestId | None = Field(default=None, description="comes back with what comes of this")
    data: Base64 = Field(description="mono PCM, base64")
    format: Literal["f32le", "s16le"] = Field(default="f32le", description="float32 or int16, little-endian")
    sample_rate: int = Field(default=16_000, ge=8_000, le=192_000, description="samples per second, Hz")
    is_last_chunk: bool = Field(default=False, description="the utterance has ended")
    endpointing: bool = Field(default=False, description="the server finds out when the utterance has ended")


Client = Annotated[
    requests.Prefill
    | requests.Edit
    | requests.Generate
    | requests.Complete
    | requests.Settings
    | requests.Recall
    | requests.Describe
    | requests.Stop
    | requests.Rollback
    | requests.Reset
    | requests.End
    | Audio,
    Field(discriminator="type"),
]
CLIENT: TypeAdapter[Client] = TypeAdapter(Client)


class _OfSession(Document):
    session_id: str = Field(description="as the client calls it")
    request_id: str | None = Field(default=None, description="of the request that this belongs to")


class Queued(_OfSession):
    """All places are busy."""

    type: Literal["queued"] = Field(default="queued", description=KIND)
    position: int = Field(ge=1, description="1: the next")


class Transcript(_OfSession):
    """What an utterance says. It is read by the model; Prefilled follows, if anything was said."""

    type: Literal["transcript"] = Field(default="transcript", description=KIND)
    text: str = Field(description="empty: nobody spoke")


class Failed(Document):
    """The request has ended, and has changed nothing; or the message was none."""

    type: Literal["error"] = Field(default="error", description=KIND)
    session_id: str | None = Field(default=None, description="as the client calls it")
    request_id: str | None = Field(default=None, description="of the request that this belongs to")
    code: Code = Field(description="which kind of error it is; these names stay")
    error: str = Field(description="which field or limit, its value, and what was expected")


Server = (
    Queued
    | Transcript
    | requests.Prefilled
    | requests.Chunk
    | requests.Responded
    | requests.RolledBack
    | requests.History
    | requests.Model
    | requests.Done
    | Failed
)
