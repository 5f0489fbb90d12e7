import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_voice.messages import Audio, Control, Played
from dora_voice.testing import Driver
from dora_voice_speaker.backends import FileSpeaker
from dora_voice_speaker.fade import FADE_SAMPLES
from dora_voice_speaker.node import PORTS
from dora_voice_speaker.playback import Playback, Report
from dora_voice_speaker.stage import MOST_SESSIONS, SpeakerStage


def ramp(start, length):
    return np.arange(start, start + length, dtype=np.float32)


def playback(longest_pause=1000, longest_queue=100_000):
    return Playback(longest_pause, longest_queue)


def add(one, segment_id, samples, *, text_end=None, fin=False, speculative=False):
    one.add(segment_id, samples, text_end, fin=fin, speculative=speculative)


def reports(one):
    return list(iter(one.next_report, None))


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20), st.lists(st.integers(1, 700), min_size=1, max_size=40))
def test_what_is_played_is_what_was_queued_sample_by_sample(chunks, asks):
    one, start = playback(), 1
    for n, length in enumerate(chunks):
        add(one, 1, ramp(start, length), fin=n == len(chunks) - 1)
        start += length
    played = np.concatenate([one.play(ask) for ask in asks])
    length = min(len(played), start - 1)
    np.testing.assert_array_equal(played[:length], ramp(1, length))
    assert not played[length:].any()
    told = reports(one)
    assert told == sorted(told, key=lambda r: r.samples)
    if sum(asks) >= start - 1 and not one.is_busy:
        assert told[-1] == Report(1, start - 1, None, is_last=True)


def test_reports_come_every_100_ms_with_the_text_that_was_played_whole():
    one = playback()
    add(one, 1, ramp(1, 2400), text_end=5)
    add(one, 1, ramp(1, 2400), text_end=9, fin=True)
    one.play(2399)
    assert reports(one) == []
    one.play(2)
    assert reports(one) == [Report(1, 2400, 5)]
    one.play(5000)
    assert reports(one)[-1] == Report(1, 4800, 9, is_last=True)


def test_a_pause_holds_and_goes_on_at_the_very_sample():
    one = playback()
    add(one, 1, ramp(1, 100))
    assert one.play(40)[-1] == 40
    one.pause(1)
    one.play(FADE_SAMPLES)
    assert not one.play(50).any()
    one.resume(1)
    assert one.play(41)[-1] == 41


def test_a_pause_says_at_once_how_much_was_heard():
    one = playback()
    add(one, 1, ramp(1, 1000))
    one.pause(1)
    one.resume(1)
    assert reports(one) == []
    one.play(700)
    one.pause(1)
    assert reports(one) == [Report(1, 700, None)]
    one.play(500)
    assert reports(one) == []


def test_a_pause_ends_by_itself():
    one = playback(longest_pause=100)
    add(one, 1, ramp(1, 300))
    one.pause(1)
    one.play(100)
    assert one.play(10)[0] == 1


def test_a_flush_cuts_what_is_older_and_says_how_much_of_it_was_heard():
    one = playback()
    add(one, 1, ramp(1, 1000), text_end=7)
    add(one, 2, ramp(5000, 10), fin=True)
    one.play(300)
    one.flush(2)
    one.play(FADE_SAMPLES)
    assert one.play(10)[0] == 5000
    assert reports(one) == [Report(1, 300, 0, is_last=True), Report(2, 10, None, is_last=True)]


def test_speculative_audio_is_held_until_its_commit():
    one = playback()
    add(one, 1, ramp(1, 100), speculative=True)
    assert not one.play(10).any()
    one.commit(1)
    assert one.play(1)[0] == 1


def test_an_empty_reply_ends_at_once_and_does_not_hold_up_the_next():
    one = playback()
    add(one, 1, ramp(0, 0), fin=True)
    add(one, 2, ramp(7, 5))
    assert one.play(5)[0] == 7
    assert reports(one) == [Report(1, 0, None, is_last=True)]


def test_a_fin_without_samples_ends_the_reply_with_its_position_in_the_text():
    for is_played_before in (True, False):
        one = playback()
        add(one, 1, ramp(1, 10), text_end=4)
        one.play(10 if is_played_before else 0)
        add(one, 1, ramp(0, 0), text_end=5, fin=True)
        one.play(10)
        assert reports(one) == [Report(1, 10, 5, is_last=True)]


def test_a_full_queue_counts_what_it_drops():
    one = playback(longest_queue=100)
    add(one, 1, ramp(1, 80))
    add(one, 1, ramp(1, 80))
    assert (one.queued, one.dropped) == (80, {"QUEUE_MAX_S is reached": 80})


class Recorder:
    def __init__(self):
        self.sounds = []

    def begin(self, restarts):
        pass

    def play(self, sound):
        self.sounds.append(sound)

    def close(self):
        self.is_closed = True

    @property
    def heard(self):
        return np.concatenate(self.sounds)


def audio(samples, segment_id=1, **keys):
    return Audio(port="audio", samples=samples, sample_rate=24_000, session_id="a", segment_id=segment_id, **keys)


def speaker(is_fast=False):
    stage = SpeakerStage(Recorder(), is_fast=is_fast, longest_pause_ms=4000, longest_queue_s=60)
    return stage, Driver(stage, PORTS)


def test_it_plays_at_the_speed_of_sound_and_reports():
    stage, driver = speaker()
    driver.feed(audio(ramp(1, 24_000), text_end=10, fin=True))
    told = driver.advance(500)
    assert 12_000 - 240 <= len(stage._backend.heard) <= 12_000
    assert [r.samples for r in told][:2] == [2400, 4800]
    assert [m for m in driver.advance(600) if m.fin] == [driver.sent[-1]]
    assert isinstance(driver.sent[-1], Played)
    assert (driver.sent[-1].samples, driver.sent[-1].text_end) == (24_000, 10)


def test_an_interruption_is_reported_at_once_and_nothing_old_is_played_after_it():
    stage, driver = speaker()
    driver.feed(audio(ramp(1, 24_000)))
    driver.advance(300)
    driver.feed(Control(port="control", verb="flush", session_id="a", segment_id=2, flush=True))
    (cut,) = driver.run()
    assert (cut.segment_id, cut.fin) == (1, True)
    driver.feed(audio(ramp(1, 24_000)), audio(ramp(-9, 5), 2, fin=True))
    driver.advance(300)
    assert stage._backend.heard.max() == cut.samples
    assert stage._backend.heard.min() == -9


def test_a_pause_that_comes_before_the_first_audio_of_its_session_holds_it():
    stage, driver = speaker()
    driver.feed(Control(port="control", verb="pause", session_id="a", segment_id=1))
    driver.run()
    driver.feed(audio(ramp(1, 2400), fin=True))
    driver.advance(300)
    assert not stage._backend.heard.any()
    driver.feed(Control(port="control", verb="resume", session_id="a", segment_id=1))
    driver.advance(300)
    assert stage._backend.heard.max() == 2400


def test_a_pause_is_reported_at_once():
    _, driver = speaker()
    driver.feed(audio(ramp(1, 24_000)))
    driver.advance(350)
    driver.feed(Control(port="control", verb="pause", session_id="a", segment_id=1))
    (report,) = driver.run()
    assert report.samples == pytest.approx(8400, abs=240)


def test_sessions_that_are_idle_are_forgotten_oldest_first():
    stage, driver = speaker()
    for n in range(MOST_SESSIONS + 9):
        driver.feed(Control(port="control", verb="pause", session_id=str(n), segment_id=1))
    driver.run()
    assert list(stage._playbacks) == [str(n) for n in range(9, MOST_SESSIONS + 9)]


def test_fast_plays_at_once_and_ends_with_finish():
    stage, driver = speaker(is_fast=True)
    driver.feed(audio(ramp(1, 50_000), fin=True), audio(ramp(0, 0), 2, finish=True))
    sent = driver.run()
    assert (sent[-2].fin, sent[-1].finish) == (True, True)
    assert len(stage._backend.heard) == 50_000


def test_other_rates_are_resampled():
    stage, driver = speaker(is_fast=True)
    low = Audio(
        port="audio", samples=np.ones(8000, np.float32), sample_rate=16_000, session_id="a", segment_id=1, fin=True
    )
    driver.feed(low)
    driver.run()
    assert len(stage._backend.heard) == 12_000


def test_a_pause_that_comes_before_its_audio_holds_it():
    one = playback()
    one.pause(1)
    add(one, 1, ramp(1, 10))
    assert not one.play(10).any()
    one.resume(1)
    assert one.play(1)[0] == 1


def test_a_reply_whose_end_never_comes_does_not_hold_up_the_next_for_ever():
    one = playback()
    add(one, 1, ramp(1, 10))
    one.play(10)
    add(one, 2, ramp(7, 5))
    assert not one.play(10 * 24_000).any()
    assert one.play(24_000).any()
    assert [(r.segment_id, r.samples) for r in reports(one) if r.is_last] == [(1, 10)]


def test_a_sample_rate_that_changes_within_a_reply_changes_nothing_of_its_length():
    stage, driver = speaker(is_fast=True)
    for rate in (24_000, 16_000, 8_000):
        driver.feed(
            Audio(port="audio", samples=np.ones(rate, np.float32), sample_rate=rate, session_id="a", segment_id=1)
        )
    driver.feed(audio(ramp(0, 0), fin=True))
    driver.run()
    assert abs(len(stage._backend.heard) - 72_000) < 10


def test_what_was_played_before_a_restart_is_kept_and_files_do_not_grow_without_end(tmp_path):
    for restarts in (0, 1):
        file = FileSpeaker(tmp_path, longest_samples=100)
        file.begin(restarts)
        for _ in range(3):
            file.play(ramp(0, 80) / 100)
        file.close()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"speaker.wav", *(f"speaker-{n}.wav" for n in range(2, 7))}


def test_an_earlier_recording_stays_until_the_conversation_begins(tmp_path):
    (tmp_path / "speaker.wav").write_bytes(b"earlier")
    file = FileSpeaker(tmp_path)
    assert (tmp_path / "speaker.wav").read_bytes() == b"earlier"
    file.begin(0)
    file.close()
    assert (tmp_path / "speaker.wav").read_bytes() != b"earlier"
