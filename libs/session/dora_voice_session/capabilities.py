"""Which optional fields of a request a model, and what stands behind it, can honour: the rest is refused by name."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import ChatMessage, SessionSettings, StreamingConfig, StreamingRequest

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

    def check(self, document: StreamingRequest | StreamingConfig | SessionSettings) -> None:
        """Raises RefusedError for the first field that was set and can't be honoured.

        A field that was set to what it is by default asks for nothing, except `generate_audio`.
        """
        for path, value in _asked_for(document, ""):
            if path.split(".")[-1] not in self.honoured:
                raise RefusedError("unsupported_field", f"{path}={reprlib.repr(value)}: {self.name} can't do that")
        if isinstance(document, StreamingRequest):
            self._check_parts(document.messages)

    def _check_parts(self, messages: Sequence[ChatMessage]) -> None:
        for i, message in enumerate(messages):
            for j, part in enumerate(message.content if isinstance(message.content, list) else ()):
                if part.type not in self.parts:
                    able = ", ".join(sorted(self.parts))
                    raise RefusedError(
                        "unsupported_part", f"messages[{i}].content[{j}]: {self.name} takes {able}, not {part.type}"
                    )


TEXT_ONLY = Capabilities("a text model")


def _asked_for(document: BaseModel, path: str) -> Iterator[tuple[str, object]]:
    """The optional fields that were set to something, with their paths."""
    for name in sorted(document.model_fields_set):
        value, default = getattr(document, name), type(document).model_fields[name].get_default()
        if name in OPTIONAL and (value is True or value not in (default, False)):
            yield path + name, value
        elif isinstance(value, BaseModel):
            yield from _asked_for(value, f"{path}{name}.")
