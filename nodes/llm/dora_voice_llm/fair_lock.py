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
    def ticket(self, *, is_urgent: bool = False) -> Iterator[Ticket]:
        """A place at the end of the line, given up however this ends. Raises RefusedError if the line is full.

        is_urgent: for what makes the line shorter; there are as many more places for that.
        """
        if len(self._tickets) >= MOST_TICKETS * (2 if is_urgent else 1):
            raise RefusedError("busy", f"{len(self._tickets)} requests of this session are waiting: expected fewer")
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
