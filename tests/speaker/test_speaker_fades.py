"""A reply that is paused or cut fades out instead of breaking off, and nothing of it is lost or heard twice."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dora_voice.audio import EMPTY, Samples
from dora_voice.testing import tone
from dora_voice_speaker.fade import FADE_SAMPLES, faded_in, faded_out
from dora_voice_speaker.playback import Playback

FULL_LEVEL = 1000
# Times to play, in samples, and what happens between them.
histories = st.lists(st.one_of(st.integers(0, 700), st.sampled_from(["pause", "resume", "audio"])), max_size=60)


def reply(samples: int) -> Samples:
    """Samples that differ, but so little that each is above FULL_LEVEL, and all that fade are below."""
    return (FULL_LEVEL + np.arange(samples) / 2**13).astype(np.float32)


def playback(samples: Samples = EMPTY) -> Playback:
    one = Playback(longest_pause_samples=10**9, longest_queue_samples=10**9)
    one.add(1, samples, None, fin=False, speculative=False)
    return one


def at_full_level(sound: Samples) -> Samples:
    return sound[sound >= FULL_LEVEL]


@given(histories)
def test_whatever_the_pauses_the_reply_is_played_once_and_whole(history: list[int | str]) -> None:
    one, sound, written = playback(), [EMPTY], 0
    for event in [*history, "resume", 10_000]:
        if event == "pause":
            one.pause(1)
        elif event == "resume":
            one.resume(1)
        elif event == "audio":
            one.add(1, reply(written + 500)[written:], None, fin=False, speculative=False)
            written += 500
        else:
            sound.append(one.play(int(event)))
    while one.ready:
        sound.append(one.play(10_000))
    np.testing.assert_array_equal(at_full_level(np.concatenate(sound)), reply(written))


@given(histories)
def test_what_is_reported_is_what_was_played_at_full_level(history: list[int | str]) -> None:
    one, heard = playback(reply(30_000)), 0
    for event in [*history, 300, "pause"]:
        if event == "pause":
            one.pause(1)
        elif event == "resume":
            one.resume(1)
        elif isinstance(event, int):
            heard += len(at_full_level(one.play(event)))
        assert all(report.samples <= heard for report in iter(one.next_report, None))
    one.drop(1)
    one.play(1000)
    assert [(report.samples, report.is_last) for report in iter(one.next_report, None)] == [(heard, True)]


@given(st.integers(1, 2000), st.integers(0, 600), st.booleans(), st.lists(st.integers(1, 300), max_size=9))
def test_what_is_held_or_cut_is_silent_within_10_ms(played: int, left: int, is_cut: bool, asks: list[int]) -> None:
    one = playback(reply(played + left))
    one.play(played)
    if is_cut:
        one.flush(2)
    else:
        one.pause(1)
    after = np.concatenate([one.play(ask) for ask in [*asks, 300]])
    fade, silence = np.split(after, [min(left, FADE_SAMPLES)])
    np.testing.assert_array_equal(fade, faded_out(reply(played + left)[played:][:FADE_SAMPLES]))
    assert len(fade) == 0 or fade[-1] == 0
    assert not silence.any()


@given(st.lists(st.integers(1, 900), min_size=1, max_size=12), st.booleans())
def test_there_is_no_click(times: list[int], is_cut_while_it_sounds: bool) -> None:
    one, sound = playback(tone(1000, rate_hz=24_000)), []
    for samples in times:
        sound.append(one.play(samples))
        one.pause(1)
        sound.append(one.play(FADE_SAMPLES + samples))
        one.resume(1)
        sound.append(one.play(FADE_SAMPLES * is_cut_while_it_sounds))
    one.drop(1)
    steps = np.abs(np.diff(np.concatenate([*sound, one.play(1000)])))
    assert steps.max() < 1.1 * np.abs(np.diff(tone(1000, rate_hz=24_000))).max()


def test_a_reply_that_is_not_heard_is_cut_without_a_sound() -> None:
    one = playback(reply(1000))
    one.pause(1)
    one.drop(1)
    one.add(2, reply(1000), None, fin=False, speculative=True)
    one.drop(2)
    assert not one.is_busy
    assert not one.play(1000).any()


def test_the_next_reply_begins_when_the_old_one_has_faded() -> None:
    one = playback(reply(1000))
    one.play(100)
    one.flush(2)
    one.add(2, np.full(100, 2000, np.float32), None, fin=True, speculative=False)
    assert one.ready == FADE_SAMPLES + 100
    sound = one.play(1000)
    assert np.flatnonzero(sound == 2000).tolist() == list(range(FADE_SAMPLES, FADE_SAMPLES + 100))


def test_a_session_is_not_finished_before_the_fade_is_over() -> None:
    one = playback(reply(1000))
    one.play(100)
    one.drop(1)
    one.play(100)
    assert one.is_busy
    one.play(FADE_SAMPLES)
    assert not one.is_busy


def test_a_pause_that_ends_by_itself_fades_in() -> None:
    one = Playback(longest_pause_samples=1000, longest_queue_samples=10**9)
    one.add(1, reply(2000), None, fin=False, speculative=False)
    one.play(500)
    one.pause(1)
    one.play(900)
    sound = one.play(600)
    np.testing.assert_array_equal(sound[:FADE_SAMPLES], faded_in(reply(500)[-FADE_SAMPLES:]))
    np.testing.assert_array_equal(sound[FADE_SAMPLES:], reply(2000)[500:][: 600 - FADE_SAMPLES])


def test_pauses_in_quick_succession_do_not_pile_up() -> None:
    one = playback(reply(2000))
    one.play(500)
    for _ in range(100):
        one.pause(1)
        one.resume(1)
    assert len(at_full_level(one.play(2 * FADE_SAMPLES + 1))) == 1
