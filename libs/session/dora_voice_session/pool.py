"""Many sessions in one model and one memory budget. Torch-free.

The least recently used session loses its cache, never its tokens, and computes them again when it returns.
Nobody's cache is taken while it computes: who needs more than is left waits, and who came first is served first.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass

from dora_voice_session.capabilities import TEXT_ONLY, Capabilities
from dora_voice_session.model import ChatModel
from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import RollbackResult, SessionSettings
from dora_voice_session.session import Session

log = logging.getLogger("dora_voice.session")


@dataclass(frozen=True, slots=True)
class Limits:
    """budget_bytes: for all caches together. away_bytes: of evicted caches that the model can keep elsewhere."""

    context_tokens: int
    budget_bytes: int = 512 * 2**20
    away_bytes: int = 4 * 2**30
    most_sessions: int = 64
    idle_s: float = 1800.0


class SessionPool:
    """`clock` gives seconds."""

    def __init__(
        self,
        model: ChatModel,
        limits: Limits,
        *,
        settings: SessionSettings | None = None,
        capabilities: Capabilities = TEXT_ONLY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._limits = limits
        self._settings = settings or SessionSettings()
        self._capabilities = capabilities
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        """The least recently used first."""
        self._used_s: dict[str, float] = {}
        self._claims: dict[str, int] = {}
        """Bytes that the sessions that compute now may take."""
        self._waiting: dict[object, Session] = {}
        """Places in the line for memory, who came first first."""

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def used_bytes(self) -> int:
        """Memory of all caches, and what was promised to those that compute now."""
        return sum(self._bytes(session) for session in self._sessions.values())

    def get(self, session_id: str) -> Session:
        """The session of this name, begun if there is none. Raises RefusedError beyond the limit."""
        if session_id not in self._sessions:
            self._put(
                Session(
                    session_id,
                    self._model,
                    context_tokens=self._limits.context_tokens,
                    settings=self._settings,
                    capabilities=self._capabilities,
                    memory=self,
                )
            )
        self._touch(session_id)
        return self._sessions[session_id]

    def fork(self, session_id: str, new_id: str) -> Session:
        """A new session with the past of another. Raises RefusedError."""
        if session_id not in self._sessions:
            raise RefusedError("unknown_session", f"session {session_id}: expected one that has begun")
        return self.get(session_id).fork(new_id)

    def rollback(self, session_id: str) -> RollbackResult:
        if session_id not in self._sessions:
            return RollbackResult(success=False, reason=f"unknown session {session_id}")
        return self.get(session_id).rollback()

    def end(self, session_id: str) -> None:
        """The session is over: everything about it is freed at once."""
        self._sessions.pop(session_id, None)
        self._used_s.pop(session_id, None)
        self._claims.pop(session_id, None)

    def expire(self) -> list[str]:
        """Ends the sessions that were not used for long. Returns their names."""
        latest_s = self._clock() - self._limits.idle_s
        busy = {*self._claims, *(session.session_id for session in self._waiting.values())}
        expired = [name for name, used_s in self._used_s.items() if used_s < latest_s and name not in busy]
        for session_id in expired:
            log.info("session=%s: not used for %g s, ended", session_id, self._limits.idle_s)
            self.end(session_id)
        return expired

    # Memory for caches: what the sessions ask for

    def claim(self, session: Session, tokens: int) -> Generator[None, None, None]:
        """Returns when `session` may hold so many tokens; until then it yields. Raises RefusedError if it never can.

        Who came first gets it first, even if there is room for others already.
        """
        needed, budget = self._model.cache_bytes(tokens), self._limits.budget_bytes
        if needed > budget:
            raise RefusedError(
                "no_memory",
                f"session {session.session_id}: {tokens} tokens take {needed / 2**20:.1f} MB of cache, "
                f"the budget is {budget / 2**20:.1f} MB",
            )
        if needed + session.snapshot_bytes > budget:
            session.lose_snapshot_cache()
        yield from self._wait(session, needed)
        if not self._is_ours(session):
            raise RefusedError("unknown_session", f"session {session.session_id} has ended")
        self._claims[session.session_id] = needed
        self._touch(session.session_id)

    def release(self, session: Session) -> None:
        if self._is_ours(session):
            self._claims.pop(session.session_id, None)
            self._touch(session.session_id)

    def spares(self, session: Session, size: int) -> bool:
        """Not while others wait for memory that they can't do without."""
        is_first = not self._waiting and self._is_ours(session)
        return is_first and self._make_room(session, self._bytes(session) + size)

    def adopt(self, session: Session) -> None:
        if session.session_id in self._sessions:
            raise RefusedError("bad_request", f"session {session.session_id} has begun already: expected a new name")
        self._put(session)
        self._touch(session.session_id)
        if not self._make_room(session, self._bytes(session)):
            self._evict(session, None)

    def _wait(self, session: Session, needed: int) -> Generator[None, None, None]:
        """Until there is room, or the session has ended."""
        place = object()
        self._waiting[place] = session
        try:
            while self._is_ours(session) and not (
                self._is_first(place) and self._make_room(session, needed + session.snapshot_bytes)
            ):
                yield
        finally:
            del self._waiting[place]

    def _is_first(self, place: object) -> bool:
        return place is next(each for each, session in self._waiting.items() if self._is_ours(session))

    def _is_ours(self, session: Session) -> bool:
        """Not one that has ended, even if another has its name now."""
        return self._sessions.get(session.session_id) is session

    def _bytes(self, session: Session) -> int:
        return max(self._claims.get(session.session_id, 0), session.cache_bytes) + session.snapshot_bytes

    def _make_room(self, session: Session, needed: int) -> bool:
        """Whether `session` may have so many bytes, once those that were used least recently have lost their caches.

        None is taken from those that compute now, and none in vain.
        """
        others = [other for other in self._sessions.values() if other is not session]
        idle = [other for other in others if other.session_id not in self._claims and self._bytes(other)]
        missing = sum(map(self._bytes, others)) + needed - self._limits.budget_bytes
        if missing > sum(map(self._bytes, idle)):
            return False
        for other in idle:
            if missing <= 0:
                break
            missing -= self._bytes(other)
            self._evict(other, session)
        return True

    def _evict(self, session: Session, comes_back: Session | None) -> None:
        tokens, size = session.cache_length, self._bytes(session)
        is_kept = session.evict()
        log.info(
            "session=%s: evicted %d tokens (%.1f MB)%s",
            *(session.session_id, tokens, size / 2**20, ", kept in host memory" if is_kept else ""),
        )
        self._limit_away(comes_back)

    def _limit_away(self, comes_back: Session | None) -> None:
        """Loses what is kept elsewhere of those that were used least recently, but not what is on its way back."""
        away = [session for session in self._sessions.values() if session.away_bytes and session is not comes_back]
        too_many = sum(session.away_bytes for session in away) - self._limits.away_bytes
        for session in away:
            if too_many <= 0:
                break
            too_many -= session.away_bytes
            session.lose_cache()

    def _put(self, session: Session) -> None:
        if len(self._sessions) >= self._limits.most_sessions:
            raise RefusedError(
                "too_many_sessions",
                f"session {session.session_id}: there are {len(self._sessions)} already, the most that are held: "
                "end one first",
            )
        self._sessions[session.session_id] = session

    def _touch(self, session_id: str) -> None:
        self._sessions.move_to_end(session_id)
        self._used_s[session_id] = self._clock()
