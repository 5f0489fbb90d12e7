"""What the events of a conversation say about when things happened."""

import pytest

from dora_voice.messages import Segment
from dora_voice_sink.record import Entry
from dora_voice_sink.scene import MOST_TICKS, Panel, Row, clock, duration, rows
from dora_voice_sink.timeline import conversations


def entry(t_s, event, segment_id=1, session_id="a", **values):
    return Entry(t_s, Segment(session_id, segment_id), event, values)


def played(begin_s, first, end, segment_id=1, fin=False, text_end=0):
    """Reports of `first` to `end` tenths of a second of the reply, played from `begin_s` on."""
    return [
        entry(
            begin_s + (tenth - first + 1) / 10,
            "played",
            segment_id,
            samples=2400 * (tenth + 1),
            text_end=text_end * (tenth + 1) // end,
            fin=fin and tenth == end - 1,
        )
        for tenth in range(first, end)
    ]


def only(entries):
    (conversation,) = conversations(sorted(entries, key=lambda entry: entry.t_s))
    return conversation


def barge_in():
    return [
        entry(1.5, "start", 1, audio_ms=500),
        entry(3.5, "commit", 1, audio_ms=3000),
        entry(4.0, "turn", 1, role="user", text="Tell me a story."),
        *played(5.0, 0, 20, 1),
        entry(6.5, "start", 2, audio_ms=5600),
        entry(7.0, "flush", 2, audio_ms=6500),
        entry(7.05, "played", 1, samples=20 * 2400 + 800, text_end=12, fin=True),
        entry(7.05, "turn", 1, role="assistant", text="Once upon a time.", heard="Once upon"),
        entry(9.0, "commit", 2, audio_ms=8500),
    ]


def test_the_sources_clock_is_told_by_what_it_says_at_once_and_not_by_the_start_of_speech():
    assert only(barge_in()).audio_offset_s == pytest.approx(0.5)


def test_a_segment_begins_with_its_first_sample_before_anybody_knew_of_it():
    first, second = only(barge_in()).exchanges
    assert (first.start_s, second.start_s) == (pytest.approx(1.0), pytest.approx(6.1))
    assert first.spoken_until_s == 3.5


def test_the_first_sound_is_before_the_first_report_of_it():
    first, second = only(barge_in()).exchanges
    assert first.first_sound_s == pytest.approx(5.0)
    assert first.sound_latency_s == pytest.approx(1.5)
    assert first.transcript_latency_s == pytest.approx(0.5)
    assert second.sound_latency_s is None


def test_an_interruption_has_the_time_until_it_was_believed_and_until_it_was_silent():
    first, second = only(barge_in()).exchanges
    assert (first.cut_s, second.cut_s) == (7.0, None)
    assert second.confirm_latency_s == pytest.approx(0.9)
    assert first.cut_latency_s == pytest.approx(0.05)
    assert first.reply.heard == "Once upon"


def test_a_session_that_comes_again_after_its_end_is_another_conversation():
    first = [entry(1, "start", 1), entry(2, "commit", 1), entry(3, "end", 1), entry(3.1, "played", 1, samples=10)]
    again = [entry(5, "start", 1), entry(6, "commit", 1)]
    assert [(one.begin_s, one.end_s) for one in conversations([*first, *again])] == [(1, 3.1), (5, 6)]


def test_interrupted_is_what_was_cut_by_the_user():
    def reply(**turn):
        answered = entry(2, "turn", 1, role="assistant", text="Once upon a time.", **turn)
        return only([entry(1, "commit", 1), answered, entry(3, "flush", 2)]).exchanges[0].is_interrupted

    assert reply(heard="Once")
    assert not reply(heard="Once", error="no voice")
    assert not reply()
    assert not only([entry(1, "start", 1), entry(3, "flush", 2)]).exchanges[0].is_interrupted


def test_who_has_finished_is_not_interrupted_by_the_next_flush():
    done = [entry(1, "commit", 1), *played(2.0, 0, 5, 1, fin=True), entry(4, "flush", 2)]
    assert only(done).exchanges[0].cut_s is None
    written = [entry(1, "turn", 1, role="assistant", text="Hi."), entry(4, "flush", 2), entry(5, "commit", 2)]
    assert only(written).exchanges[0].cut_s is None


def test_a_reply_with_a_pause_is_in_two_pieces_that_go_on_at_the_very_sample():
    reply = [*played(2.0, 0, 10), *played(4.0, 10, 30), entry(3.02, "pause"), entry(4.0, "resume")]
    conversation = only(reply)
    first, second = conversation.exchanges[0].pieces
    assert (first.begin_s, first.end_s) == (pytest.approx(2.0), pytest.approx(3.0))
    assert (second.begin_s, second.first_sample, second.end_sample) == (pytest.approx(4.0), 24_000, 72_000)
    pause = next(mark for mark in conversation.marks if mark.kind == "pause")
    assert pause.end_s == pytest.approx(4.0)


def test_a_pause_that_nobody_ends_ends_with_the_next_sound_or_with_the_segment():
    by_itself = only([*played(2.0, 0, 10), entry(3.02, "pause"), *played(7.0, 10, 20)])
    flushed = only([*played(2.0, 0, 10), entry(3.02, "pause"), entry(3.5, "flush", 2)])
    open_ended = only([*played(2.0, 0, 10), entry(3.02, "pause")])
    assert [one.marks[0].end_s for one in (by_itself, flushed, open_ended)] == [pytest.approx(7.0), 3.5, None]


def test_words_are_heard_when_the_reports_reach_them():
    text = "Rome is old"
    reply = [*played(2.0, 0, 11, text_end=11), entry(4, "turn", role="assistant", text=text)]
    assert only(reply).exchanges[0].word_times_s == pytest.approx((2.1, 2.6, 2.9))


def test_a_reply_is_timed_from_its_first_words_to_its_first_sound():
    (exchange,) = only(
        [
            entry(1, "commit"),
            entry(1.5, "reply", text="Ro"),
            entry(1.6, "reply", text="me."),
            entry(1.8, "audio", samples=0),
            *played(2.0, 0, 5, text_end=5),
            entry(2.5, "audio", samples=12_000, fin=True),
        ]
    ).exchanges
    latencies_s = (exchange.words_latency_s, exchange.audio_latency_s, exchange.sound_latency_s)
    assert latencies_s == pytest.approx((0.5, 0.8, 1.0))
    assert (exchange.reply_text, exchange.word_times_s) == ("Rome.", pytest.approx((2.1,)))


def test_what_was_dropped_is_shown_as_such_and_what_continues_it_says_so():
    first, second = only(
        [
            entry(1, "start", 1),
            entry(2, "hypothesis", 1, text="I would"),
            entry(3, "drop", 1),
            entry(3, "start", 2, continues=1),
            entry(5, "commit", 2),
        ]
    ).exchanges
    assert (first.drop_s, first.commit_s, first.guesses[-1].text) == (3, None, "I would")
    assert second.continues == 1


def test_without_the_sources_clock_everything_is_when_it_was_told():
    conversation = only([entry(1, "start"), entry(2, "commit")])
    assert conversation.audio_offset_s is None
    assert conversation.exchanges[0].start_s == 1


def test_sessions_have_their_own_clocks_and_segments():
    first, second = conversations(
        [entry(1, "commit", 1, "a", audio_ms=1000), entry(9, "commit", 1, "b", audio_ms=2000)]
    )
    assert (first.session_id, first.audio_offset_s) == ("a", 0)
    assert (second.session_id, second.audio_offset_s) == ("b", 7)


def test_values_that_cannot_be_are_as_good_as_missing():
    conversation = only(
        [
            entry(1, "start", audio_ms=float("nan")),
            entry(2, "hypothesis", text=7),
            entry(3, "played", samples=10**300, text_end=-4),
            entry(4, "turn", role=None, text=None),
            entry(5, "commit", audio_ms="soon"),
        ]
    )
    (exchange,) = conversation.exchanges
    assert (exchange.pieces, exchange.user, exchange.reply, exchange.guesses[0].text) == ((), None, None, "")


def panel(*entries):
    return Panel(only(entries))


def test_a_short_conversation_is_one_row_and_a_long_one_is_set_in_rows_of_equal_length():
    assert rows(panel(entry(1, "start"), entry(12.2, "commit")), 90) == [Row(1, 13)]
    turns = [entry(second, "commit", second) for second in range(0, 300, 7)]
    assert [row.end_s - row.begin_s for row in rows(panel(*turns), 90)] == [30] * 10
    assert len(rows(panel(*turns), 5)) == 5


def test_a_row_in_which_nothing_happened_is_left_out():
    first, second = rows(panel(entry(0, "commit", 1), entry(200, "commit", 2)), 90)
    assert (first, second) == (Row(0, 30), Row(180, 210, skipped_s=150))


def test_a_row_in_which_somebody_only_waits_for_the_reply_is_shown():
    waiting = panel(entry(0, "commit"), *played(200.0, 0, 5))
    assert [row.begin_s for row in rows(waiting, 90)] == [0, 30, 60, 90, 120, 150, 180]


@pytest.mark.parametrize("length_s", [5, 18, 30, 120, 3600, 1e6])
def test_a_row_has_some_ticks_but_not_many(length_s):
    assert 5 <= len(Row(3, 3 + length_s).ticks_s()) <= MOST_TICKS + 1


def test_times_read_as_people_write_them():
    assert [clock(t_s) for t_s in (0, 2.04, 61.25, 3723, -0.5)] == ["0:00", "0:02", "1:01.2", "1:02:03", "−0:00.5"]
    assert clock(19, is_fine=True) == "0:19.0"
    assert [duration(s) for s in (0.34, 2.07, 30, 200, 7260)] == ["340 ms", "2.07 s", "30 s", "3 min 20 s", "2 h 1 min"]
