from hypothesis import given
from hypothesis import strategies as st

from dora_voice.gate import MOST_DROPPED, MOST_SESSIONS, Gate
from dora_voice.messages import Segment

acts = st.lists(st.tuples(st.sampled_from(["flush", "drop"]), st.sampled_from("ab"), st.integers(0, 9)), max_size=12)


def judged(gate):
    return {(s, n): gate.is_dead(Segment(s, n)) for s in "ab" for n in range(10)}


@given(acts, st.randoms())
def test_the_order_in_which_news_comes_and_saying_it_twice_make_no_difference(said, random):
    gate, other = Gate(), Gate()
    shuffled = said + said[: len(said) // 2]
    random.shuffle(shuffled)
    for one, acts_of_one in ((gate, said), (other, shuffled)):
        for act, session, n in acts_of_one:
            getattr(one, act)(Segment(session, n))
    assert judged(gate) == judged(other)
    for session in "ab":
        floor = max([n for act, s, n in said if act == "flush" and s == session], default=0)
        dropped = {n for act, s, n in said if act == "drop" and s == session}
        assert all(gate.is_dead(Segment(session, n)) == (n < floor or n in dropped) for n in range(10))


def test_only_news_is_news():
    gate = Gate()
    assert gate.flush(Segment("a", 3))
    assert not gate.flush(Segment("a", 2))
    assert gate.drop(Segment("a", 1)), "flushed, it had happened"
    assert not gate.drop(Segment("a", 1))
    assert gate.drop(Segment("a", 3))
    assert not gate.drop(Segment("a", 3))


def test_a_session_that_ended_may_start_anew():
    gate = Gate()
    gate.flush(Segment("a", 3))
    gate.end("a")
    assert not gate.is_dead(Segment("a", 1))


def test_memory_is_bounded_and_what_is_used_stays():
    gate = Gate()
    gate.flush(Segment("used", 5))
    for n in range(MOST_SESSIONS + 50):
        gate.flush(Segment(f"s{n}", 5))
        assert gate.is_dead(Segment("used", 4))
    for n in range(MOST_DROPPED + 50):
        gate.drop(Segment("used", 10 + n))
    assert not gate.is_dead(Segment("used", 10))
    assert gate.is_dead(Segment("used", 10 + MOST_DROPPED))
    assert not gate.is_dead(Segment("s0", 4))
