"""Whether settings leave room for anything to be said."""

from __future__ import annotations

from dora_voice_session.context import Room
from dora_voice_session.model import ChatModel
from dora_voice_session.prompt import PromptTokens
from dora_voice_session.refused import RefusedError
from dora_voice_session.rendering import Rendering
from dora_voice_session.schema import ChatMessage, Generation, SessionSettings
from dora_voice_session.turns import Turn, Turns

A_SHORT_MESSAGE = "word " * 16


def check_room(model: ChatModel, settings: SessionSettings, context_tokens: int) -> None:
    """Raises RefusedError if with these settings not even a short message fits into the context."""
    turn = Turn(0, [ChatMessage(role="user", content=A_SHORT_MESSAGE)])
    room = Room(context_tokens, (settings.generation or Generation()).max_new_tokens)
    needed = len(PromptTokens(model.tokenize).of(Rendering(model, settings).to_answer(Turns([turn]), turn)))
    if needed > room.tokens:
        raise RefusedError(
            "bad_request",
            f"a short message takes {needed} tokens, a system prompt of {len(settings.system_prompt or '')} characters "
            f"included: a context of {context_tokens} tokens without max_new_tokens={room.reply_tokens} "
            f"leaves {room.tokens}",
        )
