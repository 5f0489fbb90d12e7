"""Utterances out of probabilities: whatever the model says, the samples are cut once and completely."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dora_voice_vad.endpointing import (
    SPLIT_SAMPLES,
    WINDOW_SAMPLES,
    Endpointer,
    Event,
    FalseAlarm,
    HardEnd,
    Limits,
    Onset,
    Resumed,
    SoftEnd,
    Speech,
)

W = WINDOW_SAMPLES
LIMITS = Limits(
    pre_roll_samples=10 * W,
    min_speech_samples=3 * W,
    soft_end_samples=4 * W,
    false_alarm_samples=6 * W,
    max_utterance_samples=2 * SPLIT_SAMPLES,
)

END_SILENCE = 8 * W

# Runs, so that long utterances and long silences come up, not only flicker.
RUNS = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 150)), max_size=12)
FLICKER = st.lists(st.floats(0, 1), max_size=200)
PROBABILITIES = st.one_of(FLICKER, RUNS.map(lambda runs: [p for p, count in runs for _ in range(count)]))


def listen(probabilities: list[float], limits: Limits = LIMITS, rest_samples: int = 0) -> list[Event]:
    endpointer = Endpointer(limits)
    events = [event for p in probabilities for event in endpointer.hear(p, END_SILENCE)]
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
def test_speech_is_contiguous_from_onset_to_the_soft_end_and_on_from_there(ps: list[float], rest: int) -> None:
    for utterance in utterances(listen(ps, rest_samples=rest)):
        assert isinstance(utterance[0], Onset)
        position = utterance[0].at
        for event in utterance:
            if isinstance(event, Speech):
                assert event.begin == position < event.end
                position = event.end
            elif isinstance(event, SoftEnd | Resumed):
                assert event.at == position
        was_soft_ended = any(isinstance(event, SoftEnd) for event in utterance)
        assert position <= ended_at(utterance) if was_soft_ended else position == ended_at(utterance)


@given(PROBABILITIES, st.integers(0, W - 1))
def test_after_a_soft_end_it_goes_on_or_ends_and_nothing_else(ps: list[float], rest: int) -> None:
    for utterance in utterances(listen(ps, rest_samples=rest)):
        for before, after in pairwise(utterance):
            if isinstance(before, SoftEnd):
                assert isinstance(after, Resumed | HardEnd)
            if isinstance(after, Resumed):
                assert isinstance(before, SoftEnd)


@given(PROBABILITIES)
def test_a_committed_utterance_shares_no_sample_with_the_next(ps: list[float]) -> None:
    for before, after in pairwise(utterances(listen(ps))):
        assert isinstance(after[0], Onset)
        if isinstance(before[-1], HardEnd):
            assert after[0].at >= max(event.end for event in before if isinstance(event, Speech))


@given(PROBABILITIES, st.integers(0, W - 1))
def test_no_utterance_is_longer_than_the_maximum(ps: list[float], rest: int) -> None:
    for utterance in utterances(listen(ps, rest_samples=rest)):
        assert isinstance(utterance[0], Onset)
        assert ended_at(utterance) - utterance[0].at <= LIMITS.max_utterance_samples


@given(PROBABILITIES, st.integers(0, W - 1))
def test_none_is_longer_together_with_those_it_goes_on_with(ps: list[float], rest: int) -> None:
    endpointer, began = Endpointer(LIMITS), 0
    for i in range(len(ps) + 1):
        for event in endpointer.hear(ps[i], END_SILENCE) if i < len(ps) else endpointer.finish(rest):
            if isinstance(event, Onset) and event.may_go_on:
                endpointer.go_on()
            elif isinstance(event, Onset):
                began = event.at
            elif isinstance(event, HardEnd):
                assert event.at - began <= LIMITS.max_utterance_samples


@given(PROBABILITIES)
def test_the_pre_roll_is_whole_unless_a_committed_utterance_or_the_beginning_is_in_the_way(ps: list[float]) -> None:
    endpointer, committed_until, sent_until = Endpointer(LIMITS), 0, 0
    for i, p in enumerate(ps):
        was_open = endpointer.is_open
        for event in endpointer.hear(p, END_SILENCE):
            if isinstance(event, Onset) and not was_open:
                assert event.at == max(committed_until, i * W - LIMITS.pre_roll_samples, 0)
            if isinstance(event, Speech):
                sent_until = event.end
            if isinstance(event, HardEnd):
                committed_until = sent_until
            was_open = True


@given(PROBABILITIES)
def test_events_reach_back_no_further_than_announced_and_memory_is_bounded(ps: list[float]) -> None:
    endpointer = Endpointer(LIMITS)
    for i, p in enumerate(ps):
        oldest = endpointer.oldest_needed
        assert i * W - oldest <= max(LIMITS.pre_roll_samples, SPLIT_SAMPLES + W)
        assert all(e.begin >= oldest for e in endpointer.hear(p, END_SILENCE) if isinstance(e, Speech))


@given(PROBABILITIES)
def test_time_goes_forward_within_an_utterance(ps: list[float]) -> None:
    for utterance in utterances(listen(ps)):
        positions = [e.end if isinstance(e, Speech) else e.at for e in utterance]
        assert positions == sorted(positions)


@given(PROBABILITIES, st.sets(st.integers(0, 100)))
def test_windows_that_nobody_could_judge_lose_an_utterance_at_most(ps: list[float], broken: set[int]) -> None:
    endpointer, taken_until = Endpointer(LIMITS), 0
    for i, p in enumerate(ps):
        if i in broken:
            endpointer.fail()
            assert not endpointer.is_open
            continue
        for event in endpointer.hear(p, END_SILENCE):
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
    assert [e for e in events if not isinstance(e, Speech)] == [Onset(0), FalseAlarm(8 * W)]


def test_after_a_false_alarm_the_pre_roll_may_use_its_samples() -> None:
    events = listen([0.9] * 2 + [0.0] * 8 + [0.9] * 5)
    assert [e.at for e in events if isinstance(e, Onset)] == [0, 0]


def test_the_soft_end_comes_first_and_the_hard_end_when_the_silence_has_lasted() -> None:
    events = [e for e in listen([0.9] * 6 + [0.1] * 8) if not isinstance(e, Speech)]
    assert events == [Onset(0), SoftEnd(10 * W), HardEnd(14 * W)]


def test_speech_after_the_soft_end_takes_it_back_and_nothing_is_lost() -> None:
    events = listen([0.9] * 6 + [0.1] * 6 + [0.9] * 2 + [0.1] * 8)
    assert Resumed(10 * W) in events
    after = events[events.index(Resumed(10 * W)) + 1]
    assert after == Speech(10 * W, 13 * W)


def test_whoever_knows_more_may_end_it_sooner_or_later() -> None:
    endpointer = Endpointer(LIMITS)
    for p in [0.9] * 6 + [0.1] * 10:
        assert not any(isinstance(event, HardEnd) for event in endpointer.hear(p, 20 * W))
    assert endpointer.hear(0.1, 5 * W) == [HardEnd(17 * W)]


def test_what_turned_out_to_be_nothing_is_forgotten_and_its_sound_may_be_pre_roll() -> None:
    endpointer = Endpointer(LIMITS)
    for p in [0.9] * 6:
        endpointer.hear(p, END_SILENCE)
    endpointer.forget()
    assert not endpointer.is_open
    assert endpointer.hear(0.9, END_SILENCE)[0] == Onset(0)


def test_a_stream_that_ends_in_speech_commits_it_with_its_last_sample() -> None:
    assert listen([0.9] * 6, rest_samples=100)[-1] == HardEnd(6 * W + 100)


def test_too_long_an_utterance_is_split_where_it_was_quietest_and_goes_on_from_there() -> None:
    windows = LIMITS.max_utterance_samples // W
    quiet = windows - 20
    ps = [0.9] * windows + [0.9] * 30
    ps[quiet] = 0.6
    events = listen(ps)
    split = (quiet + 1) * W
    assert events.index(HardEnd(split)) + 1 == events.index(Onset(split, is_rest=True))
    assert events[-1] == HardEnd(len(ps) * W)


def test_only_a_short_one_that_ended_by_itself_may_be_gone_on_with() -> None:
    def next_onset(endpointer: Endpointer) -> Onset:
        return next(e for e in endpointer.hear(0.9, END_SILENCE) if isinstance(e, Onset))

    half = LIMITS.max_utterance_samples // W // 2
    for windows, may_go_on in ((half - 8, True), (half - 7, False)):
        endpointer = Endpointer(LIMITS)
        for p in [0.9] * windows + [0.1] * 8:
            endpointer.hear(p, END_SILENCE)
        assert next_onset(endpointer).may_go_on == may_go_on


def test_the_rest_of_a_split_one_does_not_go_on_with_it_however_early_that_was_split() -> None:
    limits = replace(LIMITS, max_utterance_samples=SPLIT_SAMPLES)
    events = listen([0.9] * 10 + [0.6] + [0.9] * 88, limits)
    assert [e for e in events if isinstance(e, Onset)] == [Onset(0), Onset(11 * W, is_rest=True)]


def test_one_that_nobody_could_judge_is_not_gone_on_with() -> None:
    endpointer = Endpointer(LIMITS)
    for p in [0.9] * 6 + [0.1] * 8 + [0.9] * 6:
        endpointer.hear(p, END_SILENCE)
    endpointer.fail()
    assert endpointer.hear(0.9, END_SILENCE)[0] == Onset(20 * W, may_go_on=False)


def test_what_follows_the_quietest_point_is_held_back_until_the_split_is_decided() -> None:
    windows = LIMITS.max_utterance_samples // W
    endpointer = Endpointer(LIMITS)
    ps = [0.9] * (windows - 10) + [0.6] + [0.9] * 5
    events = [e for p in ps for e in endpointer.hear(p, END_SILENCE)]
    assert max(e.end for e in events if isinstance(e, Speech)) == (windows - 9) * W
