"""The messages of /ws/chat: each request brings the whole history, and has one answer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, TypeAdapter

from dora_voice_gateway.errors import Code
from dora_voice_session.schema import (
    REPLY_RATE_HZ,
    Base64,
    ChatMessage,
    Document,
    FinishReason,
    Generation,
    ImageOptions,
    not_too_long,
)

KIND = "what the message is"


class Speech(Document):
    enabled: bool = Field(default=False, description="the reply is fit to be spoken, and spoken")
    ref_audio_data: Base64 | None = Field(default=None, description="the voice to speak in: an audio file, base64")


class Ask(Document):
    """Answered by Queued (any number), PrefillDone, Chunk (if streaming), and Done; or by Failed at any point."""

    type: Literal["ask"] = Field(default="ask", description=KIND)
    request_id: str | None = Field(default=None, max_length=256, description="comes back with everything of this")
    messages: Annotated[list[ChatMessage], AfterValidator(not_too_long)] = Field(
        min_length=1, description="the whole conversation, the last message is answered"
    )
    streaming: bool = Field(default=False, description="the reply comes in chunks while it is made")
    generation: Generation = Field(default=Generation(), description="how the reply is chosen")
    tts: Speech = Field(default=Speech(), description="whether the reply is spoken")
    image: ImageOptions = Field(default=ImageOptions(), description="how pictures are read")
    omni_mode: bool = Field(
        default=False, description="pictures and sound of a film are understood together; a film says so by itself"
    )
    use_tts_template: bool = Field(default=False, description="the chat template's own form for spoken replies")
    enable_thinking: bool = Field(default=False, description="the model thinks in text before it answers")


class Stop(Document):
    """The request that runs ends where it is, with Done. Nothing happens if none does."""

    type: Literal["stop"] = Field(description=KIND)


def _kind(document: object) -> str:
    """A request needs no `type`."""
    return str(document.get("type", "ask")) if isinstance(document, dict) else "ask"


Client = Annotated[
    Annotated[Ask, Tag("ask")] | Annotated[Stop, Tag("stop")],
    Discriminator(_kind, custom_error_type="unknown_type", custom_error_message="type: expected 'ask' or 'stop'"),
]
CLIENT: TypeAdapter[Client] = TypeAdapter(Client)


class _Answer(Document):
    request_id: str | None = Field(default=None, description="of the request that this belongs to")


class Queued(_Answer):
    """All places are busy."""

    type: Literal["queued"] = Field(default="queued", description=KIND)
    position: int = Field(ge=1, description="1: the next")


class PrefillDone(_Answer):
    """The messages were read."""

    type: Literal["prefill_done"] = Field(default="prefill_done", description=KIND)
    input_tokens: int = Field(ge=0, description="tokens of the conversation")
    reused_tokens: int = Field(ge=0, description="those of them that were in the cache from an earlier request")


class Chunk(_Answer):
    """What follows of the reply: the deltas add up to its text, the audio to its sound."""

    type: Literal["chunk"] = Field(default="chunk", description=KIND)
    text_delta: str | None = Field(default=None, description="text")
    audio_data: Base64 | None = Field(default=None, description="float32 PCM, little-endian, mono, base64")
    audio_sample_rate: int | None = Field(default=None, description="of audio_data, samples per second, Hz")


class Done(_Answer):
    """The request has ended."""

    type: Literal["done"] = Field(default="done", description=KIND)
    text: str = Field(description="the whole reply")
    generated_tokens: int = Field(ge=0, description="tokens of the reply")
    input_tokens: int = Field(ge=0, description="tokens that it answers")
    stopped: bool = Field(default=False, description="somebody stopped it: the text ends there")
    finish_reason: FinishReason | None = Field(default=None, description="why the reply ended")
    audio_data: Base64 | None = Field(default=None, description="not streaming: the sound, float32 PCM, base64")
    audio_sample_rate: int = Field(default=REPLY_RATE_HZ, description="samples per second, Hz")


class Failed(_Answer):
    """The request has ended, or the message was none."""

    type: Literal["error"] = Field(default="error", description=KIND)
    code: Code = Field(description="which kind of error it is; these names stay")
    error: str = Field(description="which field or limit, its value, and what was expected")


Server = Queued | PrefillDone | Chunk | Done | Failed
