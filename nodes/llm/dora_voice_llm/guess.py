"""What the user has probably said so far: a turn of the session that is no part of its history."""

from __future__ import annotations

from dora_voice_session.schema import ChatMessage
from dora_voice_session.session import Session
from dora_voice_session.turns import Turns


class Guess:
    def __init__(self, session: Session) -> None:
        self.turn_id: int | None = None
        """None: nothing is guessed."""
        self._session = session
        self._held_before: int | None = None
        """Tokens that were held when it was guessed for the first time."""

    @property
    def known_turns(self) -> Turns:
        """What was really said."""
        return Turns(turn for turn in self._session.turns if turn.turn_id != self.turn_id)

    def revise(self, turn_id: int, text: str) -> bool:
        """A better guess of a turn; that of any other is dropped. False if the turn has its message already."""
        if self.turn_id != turn_id:
            self.drop()
            if self._session.turns.find(turn_id):
                return False
            self.turn_id, self._held_before = turn_id, len(self._session.tokens)
        return self._session.revise([ChatMessage(role="user", content=text)], turn_id=turn_id, is_open=True)

    def comes_true(self, turn_id: int) -> bool:
        """Whether it was this turn that was guessed, so that its words take the guess's place. Any other is dropped."""
        if self.turn_id == turn_id:
            self.turn_id = None
            return True
        self.drop()
        return False

    def drop(self) -> None:
        """Nobody said it."""
        if self.turn_id is not None:
            turn_id = self.turn_id
            self.forget()
            self._session.drop(turn_id, was_guess=True)

    def forget(self) -> None:
        """The session has no such turn any more."""
        self.turn_id = self._held_before = None

    def count_ahead(self, reused_tokens: int) -> int:
        """How many of the tokens that an answer found in the cache were computed while they were guessed."""
        held, self._held_before = self._held_before, None
        return 0 if held is None else max(0, reused_tokens - held)
