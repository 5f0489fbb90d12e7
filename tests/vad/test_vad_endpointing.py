"""Utterances out of probabilities: whatever the model says, the samples are cut once and completely."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dora_voice_vad.endpointing import (
    SPLIT_SAMPLES,
    WINDOW_SAMPLES,
    Endpointer,
    EnoughSpeech,
    Event,
    FalseAlarm,
    HardEnd,
    Limits,
    Onset,
    Speech,
)

W = WINDOW_SAMPLES
LIMITS = Limits(
    pre_roll_samples=10 * W,
    min_speech_samples=3 * W,
    barge_in_samples=5 * W,
    end_silence_samples=8 * W,
    max_utterance_samples=2 * SPLIT_SAMPLES,
)

# Runs, so that long utterances and long silences come up, not only flicker.
RUNS = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 150)), max_size=12)
FLICKER = st.lists(st.floats(0, 1), max_size=200)
PROBABILITIES = st.one_of(FLICKER, RUNS.map(lambda runs: [p for p, count in runs for _ in range(count)]))


def listen(probabilities: list[float], limits: Limits = LIMITS, rest_samples: int = 0) -> list[Event]:
    endpointer = Endpointer(limits)
    events = [event for p in probabilities for event in endpointer.hear(p)]
    return events + endpointer.finish(rest_samples)


def utterances(events: list[Event]) -> list[list[Event]]:
    """The events of each utterance, from its onset on."""
    groups: list[list[Event]] = []
    for event in events:
        if isinstance(event, Onset):
            groups.append([])
        groups[-1].append(event)
    return groups


def ended_at(utterance: list[Event]) -> int:
    last = utterance[-1]
    assert isinstance(last, HardEnd | FalseAlarm)
    return last.at


@given(PROBABILITIES, st.integers(0, W - 1))
def test_every_onset_is_followed_by_exactly_one_end_once_the_stream_is_over(ps: list[float], rest: int) -> None:
    for utterance in utterances(listen(ps, rest_samples=rest)):
        assert isinstance(utterance[0], Onset)
        assert [isinstance(e, HardEnd | FalseAlarm) for e in utterance] == [False] * (len(utterance) - 1) + [True]


@given(PROBABILITIES, st.integers(0, W - 1))
def test_speech_is_contiguous_from_onset_to_end(ps: list[float], rest: int) -> None:
    for utterance in utterances(listen(ps, rest_samples=rest)):
        assert isinstance(utterance[0], Onset)
        position = utterance[0].at
        for event in utterance:
            if isinstance(event, Speech):
                assert event.begin == position < event.end
                position = event.end
        assert ended_at(utterance) == position


@given(PROBABILITIES)
def test_a_committed_utterance_shares_no_sample_with_the_next(ps: list[float]) -> None:
    for before, after in pairwise(utterances(listen(ps))):
        assert isinstance(after[0], Onset)
        if isinstance(before[-1], HardEnd):
            assert after[0].at >= before[-1].at


@given(PROBABILITIES, st.integers(0, W - 1))
def test_no_utterance_is_longer_than_the_maximum(ps: list[float], rest: int) -> None:
    for utterance in utterances(listen(ps, rest_samples=rest)):
        assert isinstance(utterance[0], Onset)
        assert ended_at(utterance) - utterance[0].at <= LIMITS.max_utterance_samples


@given(PROBABILITIES)
def test_the_pre_roll_is_whole_unless_a_committed_utterance_or_the_beginning_is_in_the_way(ps: list[float]) -> None:
    endpointer, committed_until = Endpointer(LIMITS), 0
    for i, p in enumerate(ps):
        was_open = endpointer.is_open
        for event in endpointer.hear(p):
            if isinstance(event, Onset) and not was_open:
                assert event.at == max(committed_until, i * W - LIMITS.pre_roll_samples, 0)
            if isinstance(event, HardEnd):
                committed_until = event.at
            was_open = True


@given(PROBABILITIES)
def test_events_reach_back_no_further_than_announced_and_memory_is_bounded(ps: list[float]) -> None:
    endpointer = Endpointer(LIMITS)
    for i, p in enumerate(ps):
        oldest = endpointer.oldest_needed
        assert i * W - oldest <= max(LIMITS.pre_roll_samples, SPLIT_SAMPLES + W)
        assert all(e.begin >= oldest for e in endpointer.hear(p) if isinstance(e, Speech))


@given(PROBABILITIES)
def test_enough_speech_comes_at_most_once_and_never_before_a_false_alarm(ps: list[float]) -> None:
    for utterance in utterances(listen(ps)):
        enough = sum(isinstance(event, EnoughSpeech) for event in utterance)
        assert enough <= (0 if isinstance(utterance[-1], FalseAlarm) else 1)


@given(PROBABILITIES)
def test_time_goes_forward_within_an_utterance(ps: list[float]) -> None:
    for utterance in utterances(listen(ps)):
        positions = [e.end if isinstance(e, Speech) else e.at for e in utterance if not isinstance(e, EnoughSpeech)]
        assert positions == sorted(positions)


@given(PROBABILITIES, st.sets(st.integers(0, 100)))
def test_windows_that_nobody_could_judge_lose_an_utterance_at_most(ps: list[float], broken: set[int]) -> None:
    endpointer, taken_until = Endpointer(LIMITS), 0
    for i, p in enumerate(ps):
        if i in broken:
            endpointer.fail()
            assert not endpointer.is_open
            continue
        for event in endpointer.hear(p):
            if isinstance(event, HardEnd):
                assert event.at > taken_until
                taken_until = event.at


def test_an_utterance_ends_when_it_was_silent_for_long_enough() -> None:
    events = listen([0.0] * 20 + [0.9] * 6 + [0.1] * 20)
    assert events[0] == Onset(10 * W)
    assert events[-1] == HardEnd((20 + 6 + 8) * W)


def test_a_shorter_pause_does_not_end_it() -> None:
    events = listen([0.9] * 6 + [0.1] * 7 + [0.9] * 6 + [0.1] * 8)
    assert [e for e in events if isinstance(e, HardEnd | FalseAlarm)] == [HardEnd(27 * W)]


def test_a_probability_between_the_two_thresholds_neither_begins_speech_nor_ends_it() -> None:
    assert listen([0.45] * 50) == []
    events = listen([0.9] + [0.45] * 50)
    assert events[-1] == HardEnd(51 * W)
    assert len(utterances(events)) == 1


def test_a_click_is_a_false_alarm() -> None:
    events = listen([0.9] * 2 + [0.0] * 8)
    assert [e for e in events if not isinstance(e, Speech)] == [Onset(0), FalseAlarm(10 * W)]


def test_after_a_false_alarm_the_pre_roll_may_use_its_samples() -> None:
    events = listen([0.9] * 2 + [0.0] * 8 + [0.9] * 5)
    assert [e.at for e in events if isinstance(e, Onset)] == [0, 0]


def test_enough_speech_is_told_the_moment_it_is_enough() -> None:
    assert EnoughSpeech(5 * W) in listen([0.9] * 5)
    assert not any(isinstance(e, EnoughSpeech) for e in listen([0.9] * 4))


def test_a_stream_that_ends_in_speech_commits_it_with_its_last_sample() -> None:
    assert listen([0.9] * 6, rest_samples=100)[-1] == HardEnd(6 * W + 100)


def test_too_long_an_utterance_is_split_where_it_was_quietest_and_goes_on_from_there() -> None:
    windows = LIMITS.max_utterance_samples // W
    quiet = windows - 20
    ps = [0.9] * windows + [0.9] * 30
    ps[quiet] = 0.6
    events = listen(ps)
    split = (quiet + 1) * W
    assert events.index(HardEnd(split)) + 1 == events.index(Onset(split))
    assert events[-1] == HardEnd(len(ps) * W)


def test_what_follows_the_quietest_point_is_held_back_until_the_split_is_decided() -> None:
    windows = LIMITS.max_utterance_samples // W
    endpointer = Endpointer(LIMITS)
    ps = [0.9] * (windows - 10) + [0.6] + [0.9] * 5
    events = [e for p in ps for e in endpointer.hear(p)]
    assert max(e.end for e in events if isinstance(e, Speech)) == (windows - 9) * W
