"""Who shares out the memory for caches among sessions."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dora_voice_session.session import Session


class Memory(Protocol):
    def claim(self, session: Session, tokens: int) -> Generator[None, None, None]:
        """Returns when `session` may hold so many tokens; until then it yields. Raises RefusedError if it never can."""
        ...

    def release(self, session: Session) -> None:
        """It computes no more for now: its cache may be evicted."""
        ...

    def spares(self, session: Session, size: int) -> bool:
        """Whether `session` may hold so many bytes more at once, for something that it can do without."""
        ...

    def adopt(self, session: Session) -> None:
        """A fork of another session shares the memory from now on. Raises RefusedError."""
        ...


class UnlimitedMemory:
    def claim(self, session: Session, tokens: int) -> Generator[None, None, None]:
        yield from ()

    def release(self, session: Session) -> None: ...

    def spares(self, session: Session, size: int) -> bool:
        return True

    def adopt(self, session: Session) -> None: ...
