"""Many sessions in one model and one memory budget. Torch-free.

The least recently used session loses its cache, never its tokens, and computes them again when it returns.
Nobody's cache is taken while it computes: who needs more than is left waits.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass

from dora_voice_session.capabilities import Capabilities
from dora_voice_session.model import ChatModel
from dora_voice_session.refused import RefusedError
from dora_voice_session.schema import RollbackResult, SessionSettings
from dora_voice_session.session import TEXT_ONLY, Session

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
    """`clock` gives seconds. `counts` has evictions, and sessions that expired."""

    def __init__(
        self,
        model: ChatModel,
        limits: Limits,
        *,
        settings: SessionSettings | None = None,
        capabilities: Capabilities = TEXT_ONLY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()
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
        self._away: OrderedDict[str, int] = OrderedDict()
        """Bytes of evicted caches that are kept elsewhere."""

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
        if new_id in self._sessions:
            raise RefusedError("bad_request", f"session {new_id} has begun already: expected a new name")
        self._put(self.get(session_id).fork(new_id))
        fork = self.get(new_id)
        while self.used_bytes > self._limits.budget_bytes and self._evict_one(fork):
            pass
        if self.used_bytes > self._limits.budget_bytes:
            self._evict(fork, None)
        return fork

    def rollback(self, session_id: str) -> RollbackResult:
        if session_id not in self._sessions:
            return RollbackResult(success=False, reason=f"unknown session {session_id}")
        return self.get(session_id).rollback()

    def end(self, session_id: str) -> None:
        """The session is over: everything about it is freed at once."""
        self._sessions.pop(session_id, None)
        self._used_s.pop(session_id, None)
        self._claims.pop(session_id, None)
        self._away.pop(session_id, None)

    def expire(self) -> list[str]:
        """Ends the sessions that were not used for long. Returns their names."""
        latest_s = self._clock() - self._limits.idle_s
        expired = [name for name, used_s in self._used_s.items() if used_s < latest_s and name not in self._claims]
        for session_id in expired:
            log.info("session=%s: not used for %g s, ended", session_id, self._limits.idle_s)
            self.counts["expired"] += 1
            self.end(session_id)
        return expired

    # Memory for caches: what the sessions ask for

    def claim(self, session: Session, tokens: int) -> Generator[None, None, None]:
        """Returns when `session` may hold so many tokens; until then it yields. Raises RefusedError if it never can."""
        needed, budget = self._model.cache_bytes(tokens), self._limits.budget_bytes
        if needed > budget:
            raise RefusedError(
                "no_memory",
                f"session {session.session_id}: {tokens} tokens take {needed / 2**20:.1f} MB of cache, "
                f"the budget is {budget / 2**20:.1f} MB",
            )
        while self._is_ours(session) and self.used_bytes - self._bytes(session) + needed > budget:
            if not self._evict_one(session):
                yield
        if not self._is_ours(session):
            raise RefusedError("unknown_session", f"session {session.session_id} has ended")
        self._away.pop(session.session_id, None)
        self._claims[session.session_id] = needed
        self._touch(session.session_id)

    def release(self, session: Session) -> None:
        if self._is_ours(session):
            self._claims.pop(session.session_id, None)
            self._touch(session.session_id)

    def _is_ours(self, session: Session) -> bool:
        """Not one that has ended, even if another has its name now."""
        return self._sessions.get(session.session_id) is session

    def _bytes(self, session: Session) -> int:
        return max(self._claims.get(session.session_id, 0), session.cache_bytes)

    def _evict_one(self, but: Session) -> bool:
        """Takes the cache of the session that was used least recently and doesn't compute now."""
        for session_id, session in self._sessions.items():
            if session is but or session_id in self._claims or not self._bytes(session):
                continue
            self._evict(session, but)
            return True
        return False

    def _evict(self, session: Session, comes_back: Session | None) -> None:
        tokens, size = session.cache_length, self._bytes(session)
        is_kept = session.evict()
        log.info(
            "session=%s: evicted %d tokens (%.1f MB)%s",
            *(session.session_id, tokens, size / 2**20, ", kept in host memory" if is_kept else ""),
        )
        self.counts["evicted"] += 1
        if is_kept:
            self._away[session.session_id] = size
            self._limit_away(comes_back)

    def _limit_away(self, comes_back: Session | None) -> None:
        """Loses the oldest of what is kept elsewhere, but not what is on its way back."""
        stay = [session_id for session_id in self._away if self._sessions[session_id] is not comes_back]
        while sum(self._away[session_id] for session_id in stay) > self._limits.away_bytes:
            self._sessions[oldest := stay.pop(0)].lose_cache()
            del self._away[oldest]

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
