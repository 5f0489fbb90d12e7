"""Whoever works on a session waits for those who came before."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

from dora_voice.stage import Wait


class Line:
    def __init__(self) -> None:
        self._places: list[Place] = []

    @property
    def is_empty(self) -> bool:
        return not self._places

    def stop(self) -> None:
        """Everybody who is in the line now ends as soon as they can."""
        for place in self._places:
            place.is_stopped = True

    @contextmanager
    def place(self) -> Iterator[Place]:
        """A place at the end; it is given up in the end, however that comes."""
        place = Place(self._places)
        self._places.append(place)
        try:
            yield place
        finally:
            self._places.remove(place)


class Place:
    def __init__(self, places: list[Place]) -> None:
        self._places = places
        self.is_stopped = False

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits behind."""
        return self._places[-1] is not self

    def come_first(self) -> Generator[Wait, None, None]:
        while self._places[0] is not self:
            yield Wait()
