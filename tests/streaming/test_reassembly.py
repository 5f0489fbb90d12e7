from hypothesis import given
from hypothesis import strategies as st

from dora_voice.messages import Segment
from dora_voice.reassembly import Gap, Limits, Piece, Reassembly, Stream, Whole

A = Stream(Segment("a", 1), "text")
B = Stream(Segment("b", 1), "text")


def pieces(released):
    return [r.item for r in released if isinstance(r, Piece)]


def gaps(released):
    return [(r.first, r.last) for r in released if isinstance(r, Gap)]


@st.composite
def shuffled_streams(draw):
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    sent = [(n, seq, seq == length - 1) for n, length in enumerate(lengths) for seq in range(length)]
    doubled = sent + draw(st.lists(st.sampled_from(sent), max_size=5))
    return lengths, draw(st.permutations(doubled))


@given(shuffled_streams())
def test_any_order_of_arrival_with_duplicates_and_other_sessions_in_between_comes_out_in_order(case):
    lengths, arrivals = case
    reassembly, released = Reassembly(), []
    for n, seq, fin in arrivals:
        released += reassembly.add(Stream(Segment(f"s{n}", 1), "x"), (n, seq), seq=seq, fin=fin)
    for n, length in enumerate(lengths):
        stream = Stream(Segment(f"s{n}", 1), "x")
        mine = [r for r in released if r.stream == stream]
        assert mine == [*(Piece(stream, (n, seq)) for seq in range(length)), Whole(stream)]
        assert not reassembly.streams(f"s{n}")


@given(shuffled_streams(), st.sets(st.integers(0, 11), min_size=1))
def test_what_never_came_is_reported_with_its_numbers_and_the_rest_keeps_its_order(case, lost):
    lengths, arrivals = case
    reassembly, released = Reassembly(), []
    for n, seq, fin in arrivals:
        if seq not in lost:
            released += reassembly.add(Stream(Segment("s", n), "x"), seq, seq=seq, fin=fin)
    for stream in reassembly.streams("s"):
        released += reassembly.finish(stream)
    for n, length in enumerate(lengths):
        mine = [r for r in released if r.stream == Stream(Segment("s", n), "x")]
        came = [seq for seq in range(length) if seq not in lost]
        assert pieces(mine) == came
        missing = {m for first, last in gaps(mine) for m in range(first, length if last is None else last + 1)}
        assert missing == (set(range(length)) & lost if came else set())


def test_a_fin_that_comes_first_waits_for_the_others():
    reassembly = Reassembly()
    assert reassembly.add(A, "end", seq=2, fin=True) == []
    assert pieces(reassembly.add(A, "begin", seq=0, fin=False)) == ["begin"]
    assert reassembly.add(A, "middle", seq=1, fin=False) == [Piece(A, "middle"), Piece(A, "end"), Whole(A)]


def test_messages_without_seq_and_fin_are_taken_in_order_of_arrival():
    reassembly = Reassembly()
    assert [pieces(reassembly.add(A, word, seq=None, fin=False)) for word in "abc"] == [["a"], ["b"], ["c"]]
    assert gaps(reassembly.finish(A)) == [(3, None)]


def test_a_gap_is_given_up_when_too_much_waits_behind_it():
    reassembly = Reassembly(Limits(most_messages=2))
    assert reassembly.add(A, "c", seq=2, fin=False) == []
    assert reassembly.add(B, "x", seq=0, fin=False) == [Piece(B, "x")]
    assert reassembly.add(A, "d", seq=3, fin=False) == []
    assert reassembly.add(A, "f", seq=5, fin=False) == [
        Gap(A, 0, 1), Piece(A, "c"), Piece(A, "d"), Gap(A, 4, 4), Piece(A, "f"),
    ]  # fmt: skip


def test_a_gap_is_given_up_when_too_many_bytes_wait_behind_it():
    reassembly = Reassembly(Limits(most_bytes=100))
    assert reassembly.add(A, "b", seq=1, fin=False, size_bytes=60) == []
    assert gaps(reassembly.add(A, "c", seq=2, fin=False, size_bytes=60)) == [(0, 0)]


def test_a_gap_is_given_up_by_audio_time_of_its_own_session():
    reassembly = Reassembly(Limits(longest_ms=1000))
    reassembly.advance("a", 5000)
    reassembly.add(A, "b", seq=1, fin=False)
    assert reassembly.advance("b", 90_000) == []
    assert reassembly.advance("a", 6000) == []
    assert reassembly.advance("a", 6001) == [Gap(A, 0, 0), Piece(A, "b")]


def test_streams_whose_fin_never_comes_make_room_for_new_ones():
    reassembly = Reassembly(Limits(most_streams=2))
    for n in range(2):
        reassembly.add(Stream(Segment("a", n), "x"), n, seq=0, fin=False)
    released = reassembly.add(Stream(Segment("a", 9), "x"), 9, seq=0, fin=False)
    assert gaps(released) == [(1, None)]


def test_a_segment_that_dies_in_the_middle_leaves_nothing_and_its_rest_is_ignored():
    reassembly = Reassembly()
    reassembly.add(A, "a", seq=0, fin=False)
    reassembly.add(A, "c", seq=2, fin=False)
    reassembly.cut(A)
    assert reassembly.add(A, "b", seq=1, fin=False) == []
    assert reassembly.streams("a") == []


def test_a_gap_of_any_size_costs_nothing():
    reassembly = Reassembly(Limits(most_messages=0))
    assert reassembly.add(A, "z", seq=2**60, fin=True) == [Gap(A, 0, 2**60 - 1), Piece(A, "z"), Whole(A)]
