"""All that a session remembers of what it was told: a value that is copied, and goes back by taking a copy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import (
    ChatMessage,
    Generation,
    MediaPart,
    SessionSettings,
    StreamingConfig,
    StreamingRequest,
)
from dora_voice_session.turns import Turn, Turns


@dataclass(slots=True)
class History:
    """What raises RefusedError has changed nothing, except `edit`."""

    settings: SessionSettings = field(default_factory=SessionSettings)
    turns: Turns = field(default_factory=Turns)
    given_up: Turns = field(default_factory=Turns)
    """The oldest turns, that had to make way for the turn `given_up_for`: they come back if that is dropped."""
    given_up_for: int | None = None
    is_system_open: bool = False
    """A system message may go on."""
    unfinished: StreamingRequest | None = None
    """Said, but not read to its end yet. Nothing was said after it."""

    def copy(self) -> History:
        """From here on the two know nothing of each other."""
        return replace(self, turns=self.turns.copy(), given_up=self.given_up.copy())

    def add(
        self,
        messages: Sequence[ChatMessage],
        *,
        is_open: bool = False,
        turn_id: int | None = None,
        new_id: int | None = None,
    ) -> None:
        """As `Turns.add`. A system message, allowed only as the very first, becomes the system prompt."""
        system = messages[0].text if messages and messages[0].role == "system" and not len(self.turns) else None
        spoken = messages if system is None else messages[1:]
        if any(message.role == "system" for message in spoken):
            raise RefusedError("bad_request", "role=system: expected only as the first message of a session")
        self.turns.add(spoken, is_open=is_open, turn_id=turn_id, new_id=new_id)
        if system is not None:
            begun = self.settings.system_prompt if self.is_system_open else None
            self.settings = self.settings.model_copy(update={"system_prompt": (begun or "") + system})
        self.is_system_open = is_open and not spoken
        self.unfinished = None

    def request(self, request: StreamingRequest, *, is_open: bool, new_id: int | None = None) -> None:
        """Adds the request's messages, unless it is the one that was interrupted. Its options go with its turn."""
        if request == self.unfinished:
            return
        self.add(_with_slices(request), is_open=is_open, new_id=new_id)
        self.unfinished = request
        if self.turns.last is not None:
            self.turns.last.request = request

    def edit(self, messages: Sequence[ChatMessage], *, is_open: bool = False, new_id: int | None = None) -> None:
        """Puts messages in place of all that was said."""
        self.clear()
        self.add(messages, is_open=is_open, new_id=new_id)

    def revise(self, messages: Sequence[ChatMessage], turn_id: int, *, is_open: bool = False) -> bool:
        """As `Turns.revise`."""
        is_revised = self.turns.revise(messages, turn_id, is_open=is_open)
        if is_revised and not is_open:
            self.unfinished = None
        return is_revised

    def drop(self, turn_id: int | None, *, was_guess: bool = False) -> bool:
        """As `Turns.drop`. What had to make way for the turn is there again."""
        last = self.turns.last
        dropped_id = last.turn_id if turn_id is None and last else turn_id
        is_dropped = self.turns.drop(turn_id)
        if turn_id is not None:
            is_dropped |= self.given_up.drop(turn_id)
        if dropped_id == self.given_up_for and self.turns.find(dropped_id) is None:
            self.turns = Turns([*self.given_up, *self.turns])
            self.given_up, self.given_up_for = Turns(), None
        if self.turns.last is not last and not was_guess:
            self.unfinished = None
        return is_dropped

    def give_up(self, oldest: int, newest: Turn) -> None:
        """There is no room for so many of the oldest turns beside the newest. What made way for others is gone then."""
        before = self.given_up if self.given_up_for == newest.turn_id else ()
        # Turns of the same id are dropped with it, and don't come back.
        others = (turn for turn in self.turns.oldest(oldest) if turn.turn_id != newest.turn_id)
        self.given_up, self.given_up_for = Turns([*before, *others]), newest.turn_id
        self.turns = self.turns.without_oldest(oldest)

    def cut(self, turn_id: int | None, text_end: int) -> bool:
        """As `Turns.cut`."""
        is_cut = self.turns.cut(turn_id, text_end)
        return is_cut or (turn_id is not None and self.given_up.cut(turn_id, text_end))

    def clear(self) -> None:
        """Nothing was said. The settings stay."""
        self.turns, self.given_up, self.given_up_for = Turns(), Turns(), None
        self.is_system_open, self.unfinished = False, None

    def configure(self, settings: SessionSettings) -> None:
        """Settings from now on; a field that is null is as it was."""
        self.settings = self.configured(settings)

    def configured(self, settings: SessionSettings) -> SessionSettings:
        """What they would be then."""
        given = settings.model_dump(exclude_none=True, exclude={"generation"})
        if settings.generation is not None:
            given["generation"] = merged(self.settings.generation or Generation(), settings.generation)
        return self.settings.model_copy(update=given)

    def begin_reply(self, turn: Turn, reply_id: int | None) -> None:
        """From here on the turn takes no more messages."""
        turn.reply, turn.reply_id, turn.is_open = "", reply_id, False
        if turn is self.turns.last:
            self.unfinished = None

    def generation(self, turn: Turn | None) -> Generation:
        """How the turn is answered: as its request says, then as the settings do."""
        return merged(self.settings.generation or Generation(), turn and turn.asked("generation"))

    def streaming(self, turn: Turn | None) -> StreamingConfig:
        """How the turn's reply is delivered."""
        return (turn and turn.asked("streaming")) or StreamingConfig()


def merged(settings: Generation, asked: Generation | None) -> Generation:
    """The settings, but for those that were asked for."""
    given = {name: getattr(asked, name) for name in asked.model_fields_set} if asked else {}
    return settings.model_copy(update=given)


def _with_slices(request: StreamingRequest) -> list[ChatMessage]:
    """Its messages, in which each picture bears what the request says about all."""
    if "image" not in request.model_fields_set:
        return request.messages
    default = {"max_slice_nums": request.image.max_slice_nums}
    return [
        message
        if isinstance(message.content, str)
        else ChatMessage(
            role=message.role,
            content=[
                part.model_copy(update=default) if isinstance(part, MediaPart) and not part.max_slice_nums else part
                for part in message.content
            ],
        )
        for message in request.messages
    ]
