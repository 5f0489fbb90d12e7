"""One at a time, in order of arrival: whoever works on a session waits for those who came before."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

from dora_voice.stage import Wait
from dora_voice_session.refused import RefusedError

MOST_TICKETS = 64


class FairLock:
    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    @property
    def is_free(self) -> bool:
        return not self._tickets

    @contextmanager
    def ticket(self) -> Iterator[Ticket]:
        """A place at the end of the line, given up however this ends. Raises RefusedError if the line is full."""
        if len(self._tickets) >= MOST_TICKETS:
            raise RefusedError("busy", f"{MOST_TICKETS} requests of this session are waiting already: expected fewer")
        ticket = Ticket(self._tickets)
        self._tickets.append(ticket)
        try:
            yield ticket
        finally:
            self._tickets.remove(ticket)

    def cancel(self) -> None:
        """Everybody who holds a ticket now ends as soon as they can."""
        for ticket in self._tickets:
            ticket.is_cancelled = True


class Ticket:
    def __init__(self, tickets: list[Ticket]) -> None:
        self._tickets = tickets
        self.is_cancelled = False

    @property
    def has_waiters(self) -> bool:
        return self._tickets[-1] is not self

    def acquire(self) -> Generator[Wait, None, None]:
        """Returns when it is this one's turn."""
        while self._tickets[0] is not self:
            yield Wait()
