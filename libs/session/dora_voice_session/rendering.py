"""A conversation in the words of a model's chat template, and in its tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dora_voice_session.model import ChatModel
from dora_voice_session.prefix import common_prefix
from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import SessionSettings
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
        longer = [*messages[:-1], {**last, "content": last["content"] + IN_NO_TEMPLATE}]
        closed, longer = (self._render(each, turns.last, add_generation_prompt=False) for each in (messages, longer))
        return closed[: common_prefix(closed, longer)]

    def _messages(self, turns: Turns, until: Turn | None = None) -> list[dict[str, str]]:
        told = [self._settings.system_prompt] if self._settings.system_prompt else []
        if self._settings.language:
            told.append(f'Answer in the language "{self._settings.language}".')
        system = [{"role": "system", "content": " ".join(told)}] if told else []
        return [*system, *turns.messages(until)]

    def _render(self, messages: Sequence[dict[str, str]], turn: Turn | None, *, add_generation_prompt: bool) -> str:
        switches = {name: bool(turn and turn.asked(name)) for name in self._model.template_switches}
        plain = [{**message, "content": self._plain(message["content"])} for message in messages]
        try:
            return self._model.render(plain, add_generation_prompt=add_generation_prompt, **switches)
        except Exception as error:
            raise RefusedError("bad_request", f"the model's chat template refuses these messages: {error}") from error

    def _plain(self, text: str) -> str:
        """Without spellings of control tokens: nobody ends a turn from within it."""
        for special in self._model.special_texts:
            text = text.replace(special, " ")
        return text


def whole_words(text: str) -> str:
    """Without its last word, which may turn out longer."""
    return re.sub(r"\s*\S*$", "", text)
