"""Which optional fields of a request a model, and what stands behind it, can honour: the rest is refused by name."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from dora_voice_session import picture_file
from dora_voice_session.model import ChatModel
from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import (
    ChatMessage,
    ImageOptions,
    MediaPart,
    SessionSettings,
    StreamingConfig,
    StreamingRequest,
)

OPTIONAL = frozenset(
    {
        *("generate_audio", "audio_token_chunk_size", "ref_audio_path", "ref_audio_data", "tts_sampling"),
        *("omni_mode", "use_tts_template", "enable_thinking", "image", "voice"),
    }
)
"""Fields that need more than a text model."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    name: str
    """How the model is called in a refusal."""
    honoured: frozenset[str] = frozenset()
    """Those of OPTIONAL that have an effect."""
    parts: frozenset[str] = frozenset({"text"})
    """Kinds of content that a message may have."""

    @classmethod
    def of(cls, model: ChatModel, name: str, also: Iterable[str] = ()) -> Capabilities:
        """Those of a model, and what else is honoured."""
        slices = {"image"} if model.limits_slices else set()
        parts = {"text", "image"} if model.takes_pictures else {"text"}
        return cls(name, frozenset({*model.template_switches, *slices, *also}), frozenset(parts))

    def check(self, document: StreamingRequest | StreamingConfig | SessionSettings) -> None:
        """Raises RefusedError for the first field that was set and can't be honoured.

        A field that was set to what it is by default asks for nothing, except `generate_audio`.
        """
        for path, value in _asked_for(document, ""):
            if path.split(".")[-1] not in self.honoured:
                raise RefusedError("unsupported_field", f"{path}={reprlib.repr(value)}: {self.name} can't do that")
        if isinstance(document, StreamingRequest):
            self.check_parts(document.messages)

    def check_parts(self, messages: Sequence[ChatMessage]) -> None:
        """Raises RefusedError for the first part of a message that can't be honoured, or is too large."""
        media = list(_media(messages))
        for path, role, part in media:
            self._check_kind(path, role, part)
        pictures = {path: part for path, _, part in media if part.type == "image"}
        try:
            picture_file.check_together(list(pictures.values()))
        except ValueError as error:
            raise RefusedError("bad_request", f"messages: {error}") from error
        pixels = 0
        for path, part in pictures.items():
            try:
                pixels = picture_file.check(part, pixels)
            except ValueError as error:
                raise RefusedError("bad_request", f"{path}: {error}") from error

    def _check_kind(self, path: str, role: str, part: MediaPart) -> None:
        if part.type not in self.parts:
            able = ", ".join(sorted(self.parts))
            raise RefusedError("unsupported_part", f"{path}: {self.name} takes {able}, not {part.type}")
        if role != "user":
            raise RefusedError("unsupported_part", f"{path}: role={role}: expected {part.type} only from the user")
        if "image" not in self.honoured and part.max_slice_nums not in (None, ImageOptions().max_slice_nums):
            raise RefusedError(
                "unsupported_field", f"{path}.max_slice_nums={part.max_slice_nums}: {self.name} can't do that"
            )


TEXT_ONLY = Capabilities("a text model")


def _media(messages: Sequence[ChatMessage]) -> Iterator[tuple[str, str, MediaPart]]:
    """All parts that are no text, with their paths and who shows them."""
    for i, message in enumerate(messages):
        for j, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if isinstance(part, MediaPart):
                yield f"messages[{i}].content[{j}]", message.role, part


def _asked_for(document: BaseModel, path: str) -> Iterator[tuple[str, object]]:
    """The optional fields that were set to something, with their paths."""
    for name in sorted(document.model_fields_set):
        value, default = getattr(document, name), type(document).model_fields[name].get_default()
        if name in OPTIONAL and (value is True or value not in (default, False)):
            yield path + name, value
        elif isinstance(value, BaseModel):
            yield from _asked_for(value, f"{path}{name}.")
