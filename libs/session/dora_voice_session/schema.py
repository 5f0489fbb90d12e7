"""Requests and results of a conversation, as network clients and the `request`/`result` ports exchange them.

Unknown fields are refused, and so is a field that was set but can't be honoured: see `capabilities.py`.
Durations are milliseconds, audio is mono.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr

REPLY_RATE_HZ = 24_000
LONGEST_ID = 256
LONGEST_STOP, MOST_STOPS = 1000, 16
LONGEST_TEXT = 200_000
"""Characters of all messages of a request. More would keep the other sessions waiting until it is refused."""


class Document(BaseModel):
    """A JSON object with exactly these fields, that doesn't change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"no base64: {error}") from error
    return text


SessionId = Annotated[
    str, Field(min_length=1, max_length=LONGEST_ID, description="which conversation, up to 256 characters")
]
Base64 = Annotated[str, AfterValidator(_base64)]


# What is said


class TextPart(Document):
    type: Literal["text"] = Field(description="what kind of content this is")
    text: str = Field(description="the words")


class MediaPart(Document):
    """A picture, a sound or a film, as the bytes of a file; sound also as bare samples."""

    type: Literal["image", "audio", "video"] = Field(description="what kind of content this is")
    data: Base64 = Field(description="the file, or the samples, base64")
    format: Literal["f32le", "s16le"] | None = Field(
        default=None, description="of sound: mono PCM, float32 or int16, little-endian; null: a file of any kind"
    )
    sample_rate: int | None = Field(
        default=None, ge=8_000, le=192_000, description="of PCM, samples per second, Hz; null: 16,000"
    )
    max_slice_nums: int | None = Field(
        default=None, ge=1, description="of an image; null: what the request's `image` says"
    )
    _digest: str = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        self._digest = hashlib.sha256(self.data.encode()).hexdigest()

    @property
    def digest(self) -> str:
        """SHA-256 of `data`, hexadecimal: other data, another one."""
        return self._digest


Part = Annotated[TextPart | MediaPart, Field(discriminator="type")]


class ChatMessage(Document):
    role: Literal["system", "user", "assistant"] = Field(description="who speaks")
    content: str | list[Part] = Field(description="plain text, or parts in the order in which they are meant")

    @property
    def text(self) -> str:
        """The text of the content; parts of other kinds have none."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


def not_too_long(messages: list[ChatMessage]) -> list[ChatMessage]:
    if (length := sum(len(message.text) for message in messages)) > LONGEST_TEXT:
        raise ValueError(f"{length} characters, expected at most {LONGEST_TEXT}")
    return messages


# How it is answered


class Generation(Document):
    """How a reply is chosen. The defaults are greedy and deterministic."""

    max_new_tokens: int = Field(default=256, ge=1, description="tokens; a reply stops there at the latest")
    temperature: float = Field(default=0.0, ge=0, le=10, description="0: always the most likely token")
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="only the likeliest tokens that have this probability together"
    )
    top_k: int = Field(default=0, ge=0, description="only so many of the likeliest tokens; 0: all")
    repetition_penalty: float = Field(
        default=1.0, gt=0, le=10, description="above 1: tokens that the reply has already are less likely (CTRL, 2019)"
    )
    length_penalty: float = Field(
        default=1.0, gt=0, le=10, description="above 1: the end of the reply is less likely, so that it gets longer"
    )
    stop: list[Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]] = Field(
        default_factory=list,
        max_length=MOST_STOPS,
        description="the reply ends before the first of these texts: up to 16, of up to 1,000 characters",
    )
    seed: int | None = Field(
        default=None, ge=0, lt=2**63, description="makes sampling repeatable; null: another every time"
    )


class StreamingConfig(Document):
    """How a reply is delivered."""

    generate_audio: bool = Field(default=True, description="the reply is spoken, too")
    audio_token_chunk_size: int = Field(
        default=25, ge=1, description="length of a chunk of the reply's audio, in 40 ms"
    )
    ref_audio_path: str | None = Field(
        default=None, description="file with the voice to speak in, where the service runs"
    )
    ref_audio_data: Base64 | None = Field(default=None, description="the voice to speak in: an audio file, base64")
    enable_speculative_snapshot: bool = Field(
        default=False, description="take a snapshot before generating, for one rollback to it"
    )
    tts_sampling: dict[str, float] | None = Field(
        default=None, description="settings of the speech model, by its own names"
    )


class ImageOptions(Document):
    max_slice_nums: int = Field(default=9, ge=1, description="a picture is cut into at most so many pieces")


class StreamingRequest(Document):
    """Messages that go on where the session is; the last of them may arrive in several requests."""

    session_id: SessionId
    messages: Annotated[list[ChatMessage], AfterValidator(not_too_long)] = Field(
        min_length=1, description="what is said, in this order; up to 200,000 characters"
    )
    is_last_chunk: bool = Field(default=False, description="the last message is complete")
    generation: Generation = Field(default=Generation(), description="how the reply is chosen")
    streaming: StreamingConfig = Field(default=StreamingConfig(), description="how the reply is delivered")
    omni_mode: bool = Field(default=False, description="pictures and sound of a film are understood together")
    use_tts_template: bool = Field(
        default=False, description="the chat template's own form for replies that are spoken"
    )
    enable_thinking: bool = Field(default=False, description="the model thinks in text before it answers")
    image: ImageOptions = Field(default=ImageOptions(), description="how pictures are read")


class SessionSettings(Document):
    """What differs from one conversation to the next. A field that is null stays as it is."""

    system_prompt: str | None = Field(
        default=None,
        max_length=LONGEST_TEXT,
        description="what the model is told first; empty: only what its chat template says by itself",
    )
    language: str | None = Field(
        default=None, min_length=1, max_length=64, description="language of the replies, e.g. de"
    )
    voice: str | None = Field(default=None, min_length=1, description="name of the voice that speaks the replies")
    generation: Generation | None = Field(default=None, description="how replies are chosen")


# What comes of it


class Usage(Document):
    """Counts of tokens. `input_tokens` is what the model has read: `reused_tokens` + `computed_tokens`."""

    input_tokens: int = Field(default=0, ge=0, description="tokens of the whole text before the reply")
    reused_tokens: int = Field(default=0, ge=0, description="tokens of the input that were found in the cache")
    computed_tokens: int = Field(default=0, ge=0, description="tokens of the input that were computed now")
    replayed_tokens: int = Field(
        default=0, ge=0, description="computed tokens that had been in the cache before it was given up"
    )
    generated_tokens: int = Field(default=0, ge=0, description="tokens of the reply, without the one that ended it")
    dropped_turns: int = Field(
        default=0, ge=0, description="the oldest turns that were given up, because the context was full"
    )


FinishReason = Literal["end", "stop", "length", "stopped"]
"""The model ended it, a `stop` text came, `max_new_tokens` were reached, someone stopped it."""


class PrefillResult(Document):
    session_id: SessionId
    usage: Usage = Field(description="what the prefill took")


class StreamingChunk(Document):
    """A piece of a reply. The text deltas add up to its text, the audio to its sound."""

    chunk_index: int = Field(ge=0, description="counts from 0")
    text_delta: str = Field(default="", description="text that follows the chunk before, whole characters")
    audio_data: Base64 | None = Field(default=None, description="float32 PCM, little-endian, base64")
    audio_sample_rate: int = Field(default=REPLY_RATE_HZ, gt=0, description="samples per second, Hz")
    is_final: bool = Field(default=False, description="no chunk follows")
    duration_ms: float = Field(default=0.0, ge=0, description="ms since the chunk before, or since generating began")


class StreamingResponse(Document):
    """A whole reply."""

    session_id: SessionId
    full_text: str = Field(default="", description="the text of the reply")
    audio_path: str | None = Field(default=None, description="file with the sound, where the service runs")
    audio_data: Base64 | None = Field(default=None, description="float32 PCM, little-endian, base64")
    audio_sample_rate: int = Field(default=REPLY_RATE_HZ, gt=0, description="samples per second, Hz")
    audio_duration_ms: float = Field(default=0.0, ge=0, description="ms that the sound lasts")
    total_chunks: int = Field(default=0, ge=0, description="how many chunks the reply came in")
    total_duration_ms: float = Field(default=0.0, ge=0, description="ms from the request to answer to the last chunk")
    success: bool = Field(default=True, description="false: nothing was answered, and nothing has changed")
    error: str | None = Field(default=None, description="why not: a code, a colon, and what was expected")
    finish_reason: FinishReason | None = Field(default=None, description="why the reply ended; null: there is none")
    usage: Usage = Field(default=Usage(), description="what the reply took")


class RollbackResult(Document):
    success: bool = Field(description="the session is where it was when the snapshot was taken")
    reason: str | None = Field(default=None, description="why there was no rollback; then nothing has changed")
    restored_position: int | None = Field(default=None, ge=0, description="length of the session in tokens afterwards")
