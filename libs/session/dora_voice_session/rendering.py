"""A conversation in the words of a model's chat template, and in its tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dora_voice_session.model import ChatModel, TemplateMessage
from dora_voice_session.prefix import common_prefix
from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import Part, SessionSettings, TextPart
from dora_voice_session.turns import Turn, Turns

IN_NO_TEMPLATE = "\ue000"
"""A character of the private use area: where it changes a rendering, the content before it has ended."""


class Rendering:
    """Raises RefusedError for messages that the template refuses.

    The template's own switches are as the request of the turn that is answered, or is the last, asks.
    """

    def __init__(self, model: ChatModel, settings: SessionSettings) -> None:
        self._model = model
        self._settings = settings

    def to_answer(self, turns: Turns, turn: Turn) -> str:
        """Everything up to where the reply to `turn` begins."""
        return self._render(self._messages(turns, turn), turn, add_generation_prompt=True)

    def open(self, turns: Turns) -> str:
        """Everything that was said, without what would close the last message.

        What that is, only the template knows: so two renderings are compared that differ from there on.
        """
        messages = self._messages(turns)
        if not messages:
            return ""
        *_, last = messages
        longer = [*messages[:-1], TemplateMessage(role=last["role"], content=_longer(last["content"]))]
        closed, longer = (self._render(each, turns.last, add_generation_prompt=False) for each in (messages, longer))
        return closed[: common_prefix(closed, longer)]

    def _messages(self, turns: Turns, until: Turn | None = None) -> list[TemplateMessage]:
        told = [self._settings.system_prompt] if self._settings.system_prompt else []
        if self._settings.language:
            told.append(f'Answer in the language "{self._settings.language}".')
        system = [TemplateMessage(role="system", content=" ".join(told))] if told else []
        return [*system, *turns.messages(until)]

    def _render(self, messages: Sequence[TemplateMessage], turn: Turn | None, *, add_generation_prompt: bool) -> str:
        switches = {name: bool(turn and turn.asked(name)) for name in self._model.template_switches}
        plain = [TemplateMessage(role=each["role"], content=self._plain(each["content"])) for each in messages]
        try:
            return self._model.render(plain, add_generation_prompt=add_generation_prompt, **switches)
        except Exception as error:
            raise RefusedError("bad_request", f"the model's chat template refuses these messages: {error}") from error

    def _plain(self, content: str | list[Part]) -> str | list[Part]:
        """Without spellings of control tokens: nobody ends a turn from within it."""
        if isinstance(content, str):
            return self._plain_text(content)
        return [
            TextPart(type="text", text=self._plain_text(part.text)) if isinstance(part, TextPart) else part
            for part in content
        ]

    def _plain_text(self, text: str) -> str:
        for special in self._model.special_texts:
            text = text.replace(special, " ")
        return text


def _longer(content: str | list[Part]) -> str | list[Part]:
    if isinstance(content, str):
        return content + IN_NO_TEMPLATE
    *parts, last = content
    if isinstance(last, TextPart):
        return [*parts, TextPart(type="text", text=last.text + IN_NO_TEMPLATE)]
    return [*content, TextPart(type="text", text=IN_NO_TEMPLATE)]


def whole_words(text: str) -> str:
    """Without its last word, which may turn out longer."""
    return re.sub(r"\s*\S*$", "", text)
