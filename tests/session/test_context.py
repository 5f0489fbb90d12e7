"""Which turns fit into a context."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_voice_session.context import Room, fit
from dora_voice_session.refused import RefusedError
from dora_voice_session.turns import Turn, Turns


def turns(count):
    return Turns(Turn(i) for i in range(count))


def ids(turns):
    return [turn.turn_id for turn in turns]


def room(tokens):
    return Room(tokens + 7, 7)


def test_what_fits_stays():
    said = turns(3)
    assert ids(fit(said, said.last, room(30), lambda turns: 10 * len(turns))) == [0, 1, 2]


def test_what_does_not_fit_is_half_full_afterwards():
    said = turns(9)
    assert ids(fit(said, said.last, room(80), lambda turns: 10 * len(turns))) == [5, 6, 7, 8]


def test_what_comes_after_the_newest_does_not_count_and_stays():
    said = turns(6)
    until_3 = lambda turns: sum(10 for turn in turns if turn.turn_id <= 3)  # noqa: E731
    assert ids(fit(said, said.find(3), room(30), until_3)) == [3, 4, 5]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_newest_turn_that_does_not_fit_alone_is_refused_with_numbers(count):
    said = turns(count)
    message = r"a message of 40 tokens doesn't fit: a context of 37 tokens without max_new_tokens=7 leaves 30"
    with pytest.raises(RefusedError, match=message) as refused:
        fit(said, said.last, room(30), lambda turns: 40)
    assert refused.value.code == "context_full"


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(1, 200))
def test_no_more_is_given_up_than_has_to_be_and_nothing_is_counted_often(sizes, tokens):
    said, calls = turns(len(sizes)), []

    def count(turns):
        calls.append(turns)
        return sum(sizes[turn.turn_id] for turn in turns)

    if sizes[-1] > tokens:
        return
    left = ids(fit(said, said.last, room(tokens), count))
    assert left == ids(said)[len(sizes) - len(left) :]
    if sum(sizes) <= tokens:
        assert len(left) == len(sizes)
        return
    assert 2 * sum(sizes[i] for i in left) <= tokens or len(left) == 1
    assert len(left) == len(sizes) - 1 or 2 * sum(sizes[i] for i in [left[0] - 1, *left]) > tokens
    assert len(calls) <= 9
