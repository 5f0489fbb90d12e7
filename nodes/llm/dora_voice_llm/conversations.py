"""The sessions that have begun, each with the lock of whoever works on it, and their journal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dora_voice_llm.conversation import Conversation
from dora_voice_llm.fair_lock import FairLock, Ticket
from dora_voice_llm.journal import Journal
from dora_voice_llm.past import Past
from dora_voice_session.pool import SessionPool
from dora_voice_session.refused import RefusedError

log = logging.getLogger("dora_voice.llm")


class Conversations:
    """`run` names the run whose history is kept in `folder` for a restart; empty: it is kept nowhere."""

    def __init__(self, pool: SessionPool, folder: Path, run: str, *, is_restart: bool, knows_heard: bool) -> None:
        self._pool = pool
        self._knows_heard = knows_heard
        self._conversations: dict[str, Conversation] = {}
        self._locks: dict[str, FairLock] = {}
        self._journal = Journal(folder, run, self._present)
        self._take_up(self._journal.begin(is_restart=is_restart))
        self._journal.begin_anew()

    def get(self, session_id: str) -> Conversation:
        """The session of this name, begun if there is none. Raises RefusedError if there are too many."""
        if session_id not in self._conversations:
            self._expire()
            session = self._pool.get(session_id)
            self._conversations[session_id] = Conversation(session, self._journal, knows_heard=self._knows_heard)
        self._pool.get(session_id)
        return self._conversations[session_id]

    def find(self, session_id: str) -> Conversation | None:
        """The session of this name, if it has begun. Asking for it is using it."""
        return self.get(session_id) if session_id in self._conversations else None

    def known(self, session_id: str) -> Conversation:
        """The session of this name. Raises RefusedError if it hasn't begun."""
        self._expire()
        if (conversation := self.find(session_id)) is None:
            raise RefusedError("unknown_session", f"session {session_id}: expected one that has begun")
        return conversation

    @contextmanager
    def ticket(self, session_id: str, *, is_urgent: bool = False) -> Iterator[Ticket]:
        """A place in the line for this session, whether it has begun or not. Raises RefusedError."""
        lock = self._locks.setdefault(session_id, FairLock())
        try:
            with lock.ticket(is_urgent=is_urgent) as ticket:
                yield ticket
        finally:
            if lock.is_free:
                self._locks.pop(session_id, None)

    def is_free(self, session_id: str) -> bool:
        return session_id not in self._locks

    def cancel(self, session_id: str) -> None:
        """Whoever works on the session, or waits to, ends as soon as they can."""
        if lock := self._locks.get(session_id):
            lock.cancel()

    def end(self, session_id: str) -> None:
        self._pool.end(session_id)
        if conversation := self._conversations.pop(session_id, None):
            conversation.end()

    def lose_speaker(self, *, for_good: bool) -> None:
        """Nobody tells any more what is heard of the replies that are being played."""
        self._knows_heard &= not for_good
        for conversation in self._conversations.values():
            conversation.lose_speaker(for_good=for_good)

    def close(self) -> None:
        self._journal.close()

    def _expire(self) -> None:
        for session_id, conversation in self._conversations.items():
            if conversation.is_busy or not self.is_free(session_id):
                self._pool.get(session_id)
        for session_id in self._pool.expire():
            self.end(session_id)

    def _present(self) -> dict[str, Past]:
        return {session_id: conversation.past() for session_id, conversation in self._conversations.items()}

    def _take_up(self, left: dict[str, Past]) -> None:
        for session_id, past in left.items():
            try:
                self.get(session_id).take_up(past)
                log.info("session=%s: goes on after a restart with %d turns", session_id, len(past.turns))
            except Exception as error:
                log.error("session=%s: can't go on after a restart", session_id, exc_info=error)
                self.end(session_id)
