"""What was said in one session, turn by turn: the truth that tokens and cache follow. Pure."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dora_voice.heard import heard_of
from dora_voice_session.model import TemplateMessage
from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import ChatMessage, Part, StreamingRequest, TextPart


@dataclass(slots=True, eq=False)
class Turn:
    """What was said to the model, and what it answered."""

    turn_id: int
    messages: list[ChatMessage] = field(default_factory=list)
    reply: str | None = None
    """None: not answered yet. Of an answer, what there is of it by now; later what was heard of it."""
    reply_id: int | None = None
    """Who made the reply: dropping that takes the reply back, and leaves the turn."""
    is_open: bool = False
    """The last message may go on."""
    request: StreamingRequest | None = None
    """The latest that said something in this turn: what it asks for holds here, and nowhere else."""

    def asked(self, field: str) -> Any:
        """What its request says about this, if it does."""
        request = self.request
        return getattr(request, field) if request is not None and field in request.model_fields_set else None

    def takes(self, message: ChatMessage) -> bool:
        """Whether the message may belong to this turn still. A reply is the last that does."""
        return self.reply is None or (self.is_open and message.role == "assistant")

    def goes_on_with(self, message: ChatMessage, new_id: int | None) -> bool:
        """Whether it does, although it could begin a turn with `new_id`: as a reply, or with a message that is open."""
        is_own = new_id is None or new_id == self.turn_id
        return self.takes(message) and (is_own or self.is_open or message.role == "assistant")

    def add(self, message: ChatMessage) -> None:
        """Goes on with an open message of the same role, else after it."""
        if message.role == "assistant":
            self.reply = (self.reply or "") + message.text
        elif self.is_open and self.messages and self.messages[-1].role == message.role:
            self.messages[-1] = _joined(self.messages[-1], message, "")
        else:
            self.messages.append(message)
        self.is_open = False


class Turns:
    """In the order of their ids, which need not follow each other; several turns may have the same one."""

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self._turns = list(turns)

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._turns)

    @property
    def last(self) -> Turn | None:
        return self._turns[-1] if self._turns else None

    def find(self, turn_id: int | None) -> Turn | None:
        """The turn with this id; None means the last one."""
        if turn_id is None:
            return self.last
        return next((turn for turn in reversed(self._turns) if turn.turn_id == turn_id), None)

    def add(
        self,
        messages: Sequence[ChatMessage],
        *,
        is_open: bool = False,
        turn_id: int | None = None,
        new_id: int | None = None,
    ) -> None:
        """Puts messages into the turn with `turn_id`, begun if there is none. is_open: the last of them may go on.

        Without `turn_id` they go on where the conversation is: into the last turn, and after a reply into a new one
        with the next free id. Given `new_id`, all but what goes on with an open message begins a turn with that.
        Raises RefusedError for a turn that was answered already, and for a `new_id` before the last turn's.
        """
        if turn_id is not None:
            self._check_that_one_turn_takes(messages, turn_id)
        elif new_id is not None and self.last is not None and new_id < self.last.turn_id:
            raise RefusedError("bad_request", f"turn {new_id}: expected none before the last one, {self.last.turn_id}")
        for message in messages:
            self._turn_for(message, turn_id, new_id).add(message)
        if messages and (turn := self.find(turn_id)):
            turn.is_open = is_open

    def revise(self, messages: Sequence[ChatMessage], turn_id: int, *, is_open: bool = False) -> bool:
        """Puts messages in place of what was said in this turn so far. False if that was closed or answered."""
        turn = self.find(turn_id)
        if turn is not None and (turn.reply is not None or not turn.is_open):
            return False
        self._check_that_one_turn_takes(messages, turn_id)
        if turn is not None:
            turn.messages.clear()
            turn.request = None
        self.add(messages, is_open=is_open, turn_id=turn_id)
        return True

    def _turn_for(self, message: ChatMessage, turn_id: int | None, new_id: int | None) -> Turn:
        turn = self.find(turn_id)
        if turn is not None and turn.goes_on_with(message, new_id):
            return turn
        if new_id is None:
            new_id = turn.turn_id + 1 if turn else 0
        insort(self._turns, new := Turn(new_id if turn_id is None else turn_id), key=lambda turn: turn.turn_id)
        return new

    def _check_that_one_turn_takes(self, messages: Sequence[ChatMessage], turn_id: int) -> None:
        turn = self.find(turn_id)
        turn = Turn(turn_id) if turn is None else replace(turn, messages=list(turn.messages))
        for message in messages:
            if not turn.takes(message):
                raise RefusedError("bad_request", f"turn {turn_id} was answered already: expected a new one")
            turn.add(message)

    def drop(self, turn_id: int | None) -> bool:
        """The turns with this id, or the last one, never happened, nor did replies with it. False if there is none."""
        dropped = self._turns[-1:] if turn_id is None else [turn for turn in self._turns if turn.turn_id == turn_id]
        self._turns = [turn for turn in self._turns if turn not in dropped]
        answered = [] if turn_id is None else [turn for turn in self._turns if turn.reply_id == turn_id]
        for turn in answered:
            turn.reply = turn.reply_id = None
        return bool(dropped or answered)

    def oldest(self, count: int) -> Turns:
        return Turns(self._turns[:count])

    def without_oldest(self, count: int) -> Turns:
        return Turns(self._turns[count:])

    def cut(self, turn_id: int | None, text_end: int) -> bool:
        """Of this turn's reply only what was heard is left. False if there is no reply."""
        turn = self.find(turn_id)
        if turn is None or turn.reply is None:
            return False
        turn.reply = heard_of(turn.reply, text_end)
        return True

    def copy(self) -> Turns:
        return Turns(replace(turn, messages=list(turn.messages)) for turn in self._turns)

    def before(self, turn: Turn) -> int:
        """How many turns are older than this one."""
        return next(i for i, other in enumerate(self._turns) if other is turn)

    def messages(self, until: Turn | None = None) -> list[TemplateMessage]:
        """Role and content of everything that was said, up to what was said to the model in turn `until`.

        Roles alternate, as most templates demand: what follows a reply of which nothing was heard, or none at
        all, goes on in the same message.
        """
        said: list[ChatMessage] = []
        for turn in self._turns:
            said += turn.messages
            if turn is until:
                break
            if turn.reply and turn.reply.strip():
                said.append(ChatMessage(role="assistant", content=turn.reply))
        joined: list[ChatMessage] = []
        for message in said:
            if joined and joined[-1].role == message.role:
                joined[-1] = _joined(joined[-1], message, " ")
            else:
                joined.append(message)
        return [{"role": message.role, "content": _content(message)} for message in joined]


def _joined(message: ChatMessage, more: ChatMessage, between: str) -> ChatMessage:
    text = [TextPart(type="text", text=between)] if between else []
    return ChatMessage(role=message.role, content=[*_parts(message), *text, *_parts(more)])


def _content(message: ChatMessage) -> str | list[Part]:
    """Text alone in one piece; else parts in their order, with no two texts next to each other."""
    parts: list[Part] = []
    for part in _parts(message):
        if isinstance(part, TextPart) and parts and isinstance(parts[-1], TextPart):
            parts[-1] = TextPart(type="text", text=parts[-1].text + part.text)
        else:
            parts.append(part)
    return message.text if all(isinstance(part, TextPart) for part in parts) else parts


def _parts(message: ChatMessage) -> list[Part]:
    content = message.content
    return [TextPart(type="text", text=content)] if isinstance(content, str) else content
