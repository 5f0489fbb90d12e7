"""Messages of clients → messages of the model: sound becomes text, a film pictures and text, in the order given."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass

from dora_voice.messages import SOURCE_RATE_HZ
from dora_voice_gateway import media
from dora_voice_gateway.errors import ClientError
from dora_voice_gateway.gateway import Gateway
from dora_voice_gateway.listening import pieces, write_down
from dora_voice_gateway.media import Film
from dora_voice_session.requests import Model
from dora_voice_session.schema import ChatMessage, MediaPart, Part, TextPart

FILM_PIECE_S = 10.0, 5.0
"""The words of a film are put where they are said, this precisely."""


@dataclass(frozen=True, slots=True)
class Content:
    """What the model gets."""

    messages: list[ChatMessage]
    has_film: bool


async def content_of(messages: Sequence[ChatMessage], gateway: Gateway) -> Content:
    """Raises ClientError naming the part that the model doesn't take, or that can't be read."""
    has_media = any(not isinstance(part, TextPart) for message in messages for part in _parts(message))
    model = await gateway.model() if has_media else None
    read = [
        message if model is None else await _read(message, f"messages[{index}]", model, gateway)
        for index, message in enumerate(messages)
    ]
    films = any(part.type == "video" for message in messages for part in _parts(message))
    return Content(read, films)


def _parts(message: ChatMessage) -> Sequence[Part]:
    return () if isinstance(message.content, str) else message.content


async def _read(message: ChatMessage, where: str, model: Model, gateway: Gateway) -> ChatMessage:
    if isinstance(message.content, str):
        return message
    parts: list[Part] = []
    for index, part in enumerate(message.content):
        try:
            parts += [part] if isinstance(part, TextPart) else await _read_media(part, model, gateway)
        except ClientError as error:
            raise ClientError(error.code, f"{where}.content[{index}]: {error}") from error
    if not any(part.text.strip() if isinstance(part, TextPart) else True for part in parts):
        raise ClientError("no_speech", f"{where}.content: nobody speaks in it")
    return message.model_copy(update={"content": parts})


async def _read_media(part: MediaPart, model: Model, gateway: Gateway) -> list[Part]:
    if part.type == "audio":
        samples = await asyncio.to_thread(media.sound_of, part, gateway.limits)
        return _texts([await write_down(gateway.bridge, samples, gateway.config.request_s)])
    if "image" not in model.parts:
        raise ClientError("unsupported_part", f"{model.name} takes {', '.join(model.parts)}, not {part.type}")
    if part.type == "image":
        await asyncio.to_thread(media.check_picture, part, gateway.limits)
        return [part]
    # There are many, so each is looked at in one piece.
    slices = 1 if "image" in model.fields else None
    return await _film_parts(await asyncio.to_thread(media.film_of, part, gateway.limits), slices, gateway)


async def _film_parts(film: Film, slices: int | None, gateway: Gateway) -> list[Part]:
    """Its pictures, and between them what is said from then on."""
    timed: list[tuple[float, Part]] = [
        (at_s, MediaPart(type="image", data=base64.b64encode(picture).decode(), max_slice_nums=slices))
        for at_s, picture in film.pictures
    ]
    at_s = 0.0
    for piece in pieces(film.samples, *FILM_PIECE_S) if film.samples.size else ():
        said = await write_down(gateway.bridge, piece, gateway.config.request_s)
        timed += [(at_s, part) for part in _texts([said])]
        at_s += len(piece) / SOURCE_RATE_HZ
    return [part for _, part in sorted(timed, key=lambda each: each[0])]


def _texts(said: Sequence[str]) -> list[Part]:
    return [TextPart(type="text", text=text) for text in said]
