"""A limited number of places: never more, in the order of asking, whoever gives up while waiting."""

from __future__ import annotations

import asyncio

import pytest
from gateway.serving import talk
from hypothesis import given
from hypothesis import strategies as st

from dora_voice_gateway.places import Places


class Guest:
    """Takes a place until it is told to leave, or gives up."""

    def __init__(self, places: Places) -> None:
        self.told: list[int] = []
        self.has_place = False
        self._leave = asyncio.Event()
        self._task = asyncio.create_task(self._stay(places))

    async def leave(self) -> None:
        self._leave.set()
        await settled()

    async def give_up(self) -> None:
        self._task.cancel()
        await settled()

    async def _stay(self, places: Places) -> None:
        async with places.take(self._hear):
            self.has_place = True
            try:
                await self._leave.wait()
            finally:
                self.has_place = False

    async def _hear(self, position: int) -> None:
        self.told.append(position)


async def settled() -> None:
    """Everybody has done what could be done."""
    for _ in range(20):
        await asyncio.sleep(0)


@given(count=st.integers(1, 3), deeds=st.lists(st.tuples(st.sampled_from("clg"), st.integers(0, 9)), max_size=40))
def test_whatever_guests_do_places_are_given_to_the_first_who_are_there(count: int, deeds: list) -> None:
    async def live() -> None:
        places = Places(count)
        there: list[Guest] = []
        for deed, which in deeds:
            if deed == "c" or not there:
                there.append(Guest(places))
                await settled()
            else:
                guest = there.pop(which % len(there))
                # Who waits can only give up.
                await (guest.leave() if deed == "l" and guest.has_place else guest.give_up())
            assert [guest.has_place for guest in there] == [True] * len(there[:count]) + [False] * len(there[count:])
            assert [guest.told[-1] for guest in there[count:]] == list(range(1, len(there[count:]) + 1))
            assert places.waiting == len(there[count:])
        for guest in there:
            await guest.give_up()

    talk(live())


def test_a_position_is_told_once() -> None:
    async def live() -> list[int]:
        places = Places(1)
        first, second, third = (Guest(places) for _ in range(3))
        await settled()
        await first.leave()
        await second.leave()
        assert third.has_place
        return third.told

    assert talk(live()) == [2, 1]


def test_who_can_not_be_told_where_it_stands_keeps_nobody_waiting() -> None:
    async def gone(position: int) -> None:
        raise ConnectionError

    async def live() -> bool:
        places = Places(1)
        first = Guest(places)
        await settled()
        with pytest.raises(ConnectionError):
            async with places.take(gone):
                pass
        last = Guest(places)
        await settled()
        await first.leave()
        return last.has_place

    assert talk(live())


def test_who_fails_gives_its_place_back() -> None:
    async def tell(position: int) -> None: ...

    async def live() -> bool:
        places = Places(1)
        with pytest.raises(ValueError, match="anything"):
            async with places.take(tell):
                raise ValueError("anything")
        guest = Guest(places)
        await settled()
        return guest.has_place

    assert talk(live())
