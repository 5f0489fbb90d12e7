"""Turns that go on: how long they may get, and when they may not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from vad.driving import PAUSE, SPEECH, finish, hear, heard, read, reads_too, speech, vad, verbs, whole

from dora_voice.messages import Audio, Control, Message
from dora_voice.testing import Driver, silence, tone


def continued(sent: list[Message]) -> dict[int | None, int | None]:
    return {m.segment_id: m.continues for m in sent if isinstance(m, Control) and m.verb == "start"}


def turns_ms(sent: list[Message]) -> list[float]:
    """How much sound the turns have that happened, as stt puts them together."""
    before, ends = continued(sent), dict(verbs(sent)[::-1])

    def samples(segment_id: int | None) -> int:
        return whole(speech(sent, segment_id)).size + samples(before[segment_id]) if segment_id else 0

    dropped = {segment_id for verb, segment_id in verbs(sent) if verb == "drop"}
    assert "commit" in ends
    return [samples(each) / 16 for verb, each in verbs(sent) if verb == "commit" and each not in dropped]


def test_sentences_with_short_pauses_are_turns_of_which_none_is_too_long() -> None:
    sentence = [tone(6_000), silence(704)]
    sent = hear(vad(end_silence_ms=300), *sentence * 8, PAUSE)
    assert [before for before in continued(sent).values() if before]
    assert max(turns_ms(sent)) <= 30_000
    assert sum(turns_ms(sent)) >= 8 * 6_000


def test_a_turn_that_goes_on_is_split_where_all_of_it_is_too_long() -> None:
    sent = hear(vad(end_silence_ms=300), tone(10_000), silence(704), tone(25_000), PAUSE)
    assert continued(sent) == {1: None, 2: 1, 3: None}
    assert max(turns_ms(sent)) <= 30_000
    assert sum(turns_ms(sent)) >= 35_000


def test_the_rest_of_an_utterance_that_was_split_does_not_take_it_back() -> None:
    sent = hear(vad(max_utterance_s=10), tone(13_000), PAUSE)
    assert verbs(sent) == [("start", 1), ("commit", 1), ("start", 2), ("pause", 1), ("flush", 2), ("commit", 2)]
    assert continued(sent) == {1: None, 2: None}


def crash_source(driver: Driver) -> None:
    driver.intake.restarted(["audio"], "source")
    driver.run()


def crowd_out(driver: Driver) -> None:
    hear(driver, silence(32), session="b")


@pytest.mark.parametrize("end", [finish, crash_source, crowd_out])
def test_a_new_stream_does_not_go_on_with_the_last_turn_of_the_one_before(end: Callable[[Driver], object]) -> None:
    driver = vad(sessions=1)
    hear(driver, tone(3_000))
    end(driver)
    sent = hear(driver, silence(1_024), SPEECH, PAUSE)
    assert continued(sent) == {2: None}
    assert verbs(sent) == [("start", 2), ("pause", 1), ("flush", 2), ("commit", 2)]


def read_and_split(**settings: int) -> Driver:
    """The first part of what is said was too long, and its text isn't known yet."""
    driver = reads_too(max_utterance_s=10, **settings)
    assert verbs(hear(driver, tone(13_000))) == [("start", 1), ("commit", 1), ("start", 2), ("pause", 1)]
    return driver


def test_the_first_part_of_a_long_utterance_is_interrupted_only_when_its_text_is_known() -> None:
    driver = read_and_split()
    assert verbs(read(driver, 1, "All of that.")) == [("flush", 2)]
    assert verbs(hear(driver, silence(320))) == []
    assert verbs(read(driver, 2, "And this.") + hear(driver, PAUSE)) == [("commit", 2)]


def test_where_the_second_part_has_ended_before_that_it_is_interrupted_then() -> None:
    driver = read_and_split()
    hear(driver, silence(320))
    assert verbs(read(driver, 2, "And this.") + hear(driver, PAUSE)) == [("commit", 2)]
    assert verbs(read(driver, 1, "", error="no model")) == [("flush", 2)]


def test_a_recogniser_that_is_gone_or_says_nothing_of_it_is_not_waited_for_for_ever() -> None:
    driver = read_and_split()
    driver.intake.restarted(["hypothesis"], "stt")
    assert verbs(hear(driver, silence(3_000)) + hear(driver, SPEECH))[:2] == [("flush", 2), ("commit", 2)]
    driver = read_and_split()
    hear(driver, silence(21_000))
    assert verbs(hear(driver, SPEECH))[:2] == [("flush", 2), ("start", 3)]


def test_the_last_word_of_an_utterance_that_was_split_is_none_too_short() -> None:
    sent = hear(vad(max_utterance_s=10), tone(10_100), silence(2_000))
    assert verbs(sent)[-1] == ("commit", 2)
    assert sum(turns_ms(sent)) >= 10_100


def test_silence_after_the_split_is_none_at_all() -> None:
    sent = hear(vad(max_utterance_s=10), tone(9_950), silence(2_000))
    assert [verb for verb in verbs(sent) if verb[0] in ("commit", "flush")] == [("commit", 1)]


def test_the_text_of_the_first_part_may_be_told_before_the_second_begins() -> None:
    driver = reads_too(max_utterance_s=10)
    driver.feed(Audio(port="audio", samples=tone(13_000), sample_rate=16_000, session_id="a"))
    while verbs(driver.sent) != [("start", 1), ("commit", 1)]:
        assert driver.step()
    read(driver, 1, "All of that.")
    assert verbs(driver.sent) == [("start", 1), ("commit", 1), ("start", 2), ("pause", 1), ("flush", 2)]


def test_of_several_parts_the_older_ones_are_interrupted_as_soon_as_they_are_known() -> None:
    driver = reads_too(max_utterance_s=10)
    hear(driver, tone(22_000))
    assert verbs(read(driver, 1, "One.")) == [("flush", 2)]
    assert verbs(read(driver, 2, "Two.")) == [("flush", 3)]


def test_a_part_that_nobody_told_of_does_not_stand_in_the_way_of_an_interruption() -> None:
    driver = read_and_split()
    hear(driver, silence(320))
    read(driver, 2, "And this.")
    hear(driver, PAUSE)
    heard(driver, 2, fin=False)
    assert verbs(hear(driver, tone(1_500))) == [("flush", 2), ("start", 3), ("pause", 2), ("flush", 3)]


def test_what_is_told_after_the_end_of_the_stream_is_interrupted_all_the_same() -> None:
    driver = read_and_split()
    assert verbs(finish(driver)) == [("commit", 2)]
    assert verbs(read(driver, 1, "All of that.")) == [("flush", 2)]


def is_finished(driver: Driver) -> bool:
    return any(message.finish for message in driver.sent)


def test_the_end_of_the_stream_is_passed_on_when_nothing_is_owed_any_more() -> None:
    driver = read_and_split()
    finish(driver)
    assert not is_finished(driver)
    read(driver, 1, "All of that.")
    assert verbs(driver.sent)[-1] == ("flush", 2)
    assert is_finished(driver)


def test_the_end_of_the_stream_does_not_wait_for_ever_for_a_recogniser_that_says_nothing() -> None:
    driver = read_and_split()
    finish(driver)
    driver.advance(19_000)
    assert not is_finished(driver)
    driver.advance(2_000)
    assert is_finished(driver)


def test_what_nobody_told_of_one_stream_delays_no_interruption_in_the_next() -> None:
    driver = read_and_split()
    finish(driver)
    driver.advance(21_000)
    assert ("flush", 3) in verbs(hear(driver, tone(1_500)))


def test_an_interruption_is_owed_also_when_the_speaker_crashes_meanwhile() -> None:
    driver = reads_too(max_utterance_s=10)
    hear(driver, tone(22_000))
    driver.intake.restarted(["played"], "speaker")
    assert verbs(read(driver, 1, "One.")) == [("flush", 2)]
    assert verbs(read(driver, 2, "Two.")) == [("flush", 3)]


def test_a_part_whose_reply_is_heard_was_told() -> None:
    driver = read_and_split()
    hear(driver, PAUSE)
    heard(driver, 1, fin=False)
    assert ("flush", 2) in verbs(hear(driver, tone(1_500)))
