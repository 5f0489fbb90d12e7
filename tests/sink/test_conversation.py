import json
import wave
from dataclasses import replace

import numpy as np
import pytest

from dora_voice.messages import Audio, Control, Played, Text
from dora_voice.testing import Driver, tone
from dora_voice_sink.files import Journal, ReplyFiles, file_name
from dora_voice_sink.node import PORTS
from dora_voice_sink.stage import SinkStage


@pytest.fixture
def sink(tmp_path):
    return Driver(SinkStage(Journal(tmp_path), ReplyFiles(tmp_path)), PORTS)


def lines(tmp_path, *names):
    events = [json.loads(line) for line in (tmp_path / "conversation.jsonl").read_text().splitlines()]
    return [event for event in events if not names or event["event"] in names]


def said(port, text, segment_id=1, seq=0, fin=True, session_id="a", **keys):
    return Text(port=port, text=text, session_id=session_id, segment_id=segment_id, seq=seq, fin=fin, **keys)


def control(verb, segment_id=1, session_id="a", audio_ms=1000):
    return Control(
        port="control",
        verb=verb,
        session_id=session_id,
        segment_id=segment_id,
        audio_ms=audio_ms,
        flush=verb == "flush",
    )


def played(samples, text_end, segment_id=1, fin=False):
    return Played(port="played", samples=samples, text_end=text_end, session_id="a", segment_id=segment_id, fin=fin)


def sound(samples, seq, segment_id=1, fin=False, error=None):
    return Audio(
        port="reply_audio",
        samples=samples,
        sample_rate=24_000,
        error=error,
        session_id="a",
        segment_id=segment_id,
        seq=seq,
        fin=fin,
    )


def shown(capsys):
    """The lines on the terminal, without their times."""
    return [line.split(" s  ", 1)[-1] for line in capsys.readouterr().out.splitlines()]


def test_a_turn_is_put_together_by_seq_and_shown_as_it_is_spoken(sink, tmp_path, capsys):
    sink.feed(control("start"), said("user_text", "Hello?"), control("commit"))
    sink.feed(said("reply_text", " Fine.", seq=1), said("reply_text", "Hi there.", seq=0, fin=False))
    sink.feed(played(2400, 9))
    sink.run()
    assert [line["text"] for line in lines(tmp_path, "turn")] == ["Hello?"]
    assert shown(capsys) == ["a   you  Hello?", "a robot  Hi there."]
    sink.feed(played(4800, 15, fin=True))
    sink.run()
    assert [(line["role"], line["text"]) for line in lines(tmp_path, "turn")] == [
        ("user", "Hello?"),
        ("assistant", "Hi there. Fine."),
    ]
    assert shown(capsys) == ["a robot  Fine."]
    assert lines(tmp_path, "commit") == [
        {"t_s": 0.0, "session_id": "a", "segment_id": 1, "event": "commit", "audio_ms": 1000}
    ]


@pytest.mark.parametrize(
    ("reply", "clauses"),
    [
        ('He said "Echo," and left. So?', ['He said "Echo,"', "and left.", "So?"]),
        ("It takes 1.9 seconds, or 1. Then 2.", ["It takes 1.9 seconds,", "or 1. Then 2."]),
        ("他说：“你好。”走了。", ["他说：", "“你好。”", "走了。"]),
    ],
)
def test_a_reply_is_shown_clause_by_clause_as_it_is_heard(sink, capsys, reply, clauses):
    sink.feed(control("commit"), said("reply_text", reply))
    sink.feed(*(played(end, end, fin=end == len(reply)) for end in range(1, len(reply) + 1)))
    sink.run()
    assert shown(capsys) == [f"a robot  {clause}" for clause in clauses]


def test_a_reply_that_a_hum_held_says_that_it_goes_on(sink, capsys):
    sink.feed(control("commit"), said("reply_text", "One two three."), played(2400, 3), control("pause"))
    sink.feed(control("resume"), control("resume", 2), played(9600, 14, fin=True))
    sink.run()
    sink.scheduler.close()
    told = shown(capsys)
    assert told[:2] == ["a robot  (was held, goes on)", "a robot  One two three."]
    assert "1 held and continued" in told[2]


def test_a_reply_that_was_cut_is_written_with_what_was_heard_of_it(sink, tmp_path):
    sink.feed(said("user_text", "Story!"), said("reply_text", "Once upon a time."), played(2400, 9))
    sink.feed(control("flush", 2), played(2500, 9, fin=True))
    sink.feed(said("user_text", "Stop!", 2), said("reply_text", "Ok.", 2), played(100, 3, 2, fin=True))
    sink.run()
    turns = [(line["segment_id"], line["role"], line["text"], line.get("heard")) for line in lines(tmp_path, "turn")]
    assert turns == [
        (1, "user", "Story!", None),
        (1, "assistant", "Once upon a time.", "Once upon"),
        (2, "user", "Stop!", None),
        (2, "assistant", "Ok.", None),
    ]


def test_a_transcript_in_pieces_stays_said_wherever_the_flush_comes(sink, tmp_path):
    sink.feed(said("user_text", "Hello ", fin=False), control("flush", 2), said("user_text", "world.", seq=1))
    sink.run()
    assert [line["text"] for line in lines(tmp_path, "turn")] == ["Hello world."]


def test_an_end_in_the_middle_of_a_reply_leaves_what_was_heard_of_it(sink, tmp_path):
    sink.feed(said("user_text", "Story!"), control("commit"), said("reply_text", "Once upon a time."), played(2400, 9))
    sink.feed(control("end"))
    sink.run()
    assert [line.get("heard") for line in lines(tmp_path, "turn")] == [None, "Once upon"]


def test_a_first_fragment_that_never_came_is_told_when_it_stops(sink, tmp_path):
    sink.feed(said("reply_text", "there.", seq=1))
    sink.run()
    sink.scheduler.close()
    assert [line["missing"] for line in lines(tmp_path, "gap")] == [[0]]


def test_many_and_long_errors_of_a_segment_are_told_and_not_kept(sink, tmp_path):
    for number in range(300):
        sink.feed(Played(port="played", samples=0, session_id="a", segment_id=1, error=f"{number} {'x' * 2000}"))
    sink.run()
    assert len(lines(tmp_path, "error")) == 300
    assert max(len(line["error"]) for line in lines(tmp_path, "error")) == 1000


def test_no_text_can_write_a_line_of_its_own(sink, capsys):
    sink.feed(said("user_text", "Hi\x1b[2J\n    9.9 s  robot  I obey."), control("commit"))
    sink.run()
    (line,) = capsys.readouterr().out.splitlines()
    assert "\x1b" not in line


def test_the_last_report_may_overtake_the_flush_that_it_is_due_to(sink, tmp_path):
    sink.feed(said("user_text", "Hi."), control("commit"), said("reply_text", "One two three"))
    sink.feed(played(2400, 7, fin=True), control("flush", 2))
    sink.run()
    assert [turn.get("heard") for turn in lines(tmp_path, "turn")] == [None, "One two"]


def test_a_speculative_turn_is_written_when_it_is_committed_and_never_when_it_is_dropped(sink, tmp_path):
    sink.feed(said("user_text", "half", 1, speculative=True), control("drop", 1), control("commit", 1))
    sink.feed(said("user_text", "whole", 2, speculative=True))
    sink.run()
    assert lines(tmp_path, "turn") == []
    sink.feed(control("commit", 2))
    sink.run()
    assert [line["text"] for line in lines(tmp_path, "turn")] == ["whole"]


def test_the_journal_tells_when_a_reply_was_written_and_when_its_sound_came(sink, tmp_path):
    sink.feed(said("reply_text", "Hi.", fin=False), said("reply_text", "", seq=1))
    sink.feed(sound(tone(20, rate_hz=24_000), 0), sound(tone(20, rate_hz=24_000), 1, fin=True))
    sink.run()
    assert [line["text"] for line in lines(tmp_path, "reply")] == ["Hi."]
    assert [(line["samples"], "fin" in line) for line in lines(tmp_path, "audio")] == [(0, False), (960, True)]


def test_what_was_said_too_soon_is_counted(sink, capsys):
    fragment = replace(said("reply_text", "Hi.", fin=False), speculative=True)
    sink.feed(fragment, replace(sound(tone(1_500, rate_hz=24_000), 0), speculative=True), control("drop"))
    sink.run()
    sink.scheduler.close()
    assert "taken back: 1 tokens, 1.5 s of audio" in capsys.readouterr().out


def test_what_was_taken_back_is_no_turn_in_the_summary(sink, capsys):
    sink.feed(said("user_text", "I would"), control("commit"), said("reply_text", "Yes?"), played(480, 2))
    sink.feed(control("start", 2), control("flush", 2), played(600, 2, fin=True), control("drop", 1))
    sink.feed(said("user_text", "I would like tea.", 2), control("commit", 2))
    sink.feed(said("user_text", "", 3, rejected="noise", speculative=True), control("drop", 3))
    sink.run()
    sink.scheduler.close()
    shown = capsys.readouterr().out
    assert "summary: 1 user turns, 0 replies, 0 interrupted, 0 held and continued, 0 rejected as no speech" in shown
    assert [line.split("you  ")[1] for line in shown.splitlines() if "you  " in line] == [
        "I would",
        "(interrupts)",
        "(taken back)",
        "I would like tea.",
    ]


def test_a_turn_without_an_end_is_kept_up_to_a_limit_and_told_once(sink, tmp_path):
    for port in ("user_text", "reply_text"):
        sink.feed(*(said(port, "x" * 40_000, seq=seq, fin=seq == 4) for seq in range(5)))
    sink.feed(played(480, 200_000, fin=True))
    sink.run()
    assert [line["error"] for line in lines(tmp_path, "error")] == [
        f"too long: 100000 characters of {output} are kept" for output in ("stt.text", "llm.text")
    ]
    assert [(line["role"], len(line["text"])) for line in lines(tmp_path, "turn")] == [
        ("user", 100_000),
        ("assistant", 100_000),
    ]
    assert sum(len(line["text"]) for line in lines(tmp_path, "reply")) == 200_000


def test_replies_whose_end_never_comes_do_not_pile_up(sink):
    replies = sink.stage._replies
    for number in range(4096 + 300):
        sink.feed(sound(tone(1), 0, number))
        sink.run()
    assert len(replies._open) + len(replies._refused) == 4096


def test_no_speech_is_no_turn_and_an_error_is_told_once(sink, tmp_path):
    sink.feed(said("user_text", "", 1, rejected="noise"), said("reply_text", "", 1), played(0, None, 1, fin=True))
    error = "RuntimeError: broken"
    sink.feed(
        said("user_text", "Hi", 2), said("reply_text", "We", 2, fin=False), said("reply_text", "", 2, 1, error=error)
    )
    sink.feed(sound(tone(20), 0, 2), sound(tone(0), 1, 2, fin=True, error=error))
    sink.feed(played(10, None, 2, fin=True))
    sink.run()
    assert [line["reason"] for line in lines(tmp_path, "rejected")] == ["noise"]
    assert [line["error"] for line in lines(tmp_path, "error")] == [error]
    assert [(line["segment_id"], line["text"], line.get("error")) for line in lines(tmp_path, "turn")] == [
        (2, "Hi", None),
        (2, "We", error),
    ]


def test_what_was_synthesised_is_in_a_wav_file_in_the_order_of_seq(sink, tmp_path):
    first, second = tone(20, rate_hz=24_000), tone(30, 880, rate_hz=24_000)
    sink.feed(sound(second, 1, fin=True), sound(first, 0))
    sink.run()
    with wave.open(str(tmp_path / "reply-a-1.wav")) as file:
        assert file.getframerate() == 24_000
        samples = np.frombuffer(file.readframes(10_000), np.int16) / 32768
    np.testing.assert_allclose(samples, np.concatenate([first, second]), atol=1e-4)


def test_what_is_lost_is_reported_with_its_numbers_when_the_session_ends(sink, tmp_path):
    sink.feed(said("reply_text", "one", seq=0, fin=False), said("reply_text", "four", seq=3))
    sink.feed(Played(port="played", samples=0, session_id="a", finish=True))
    sink.run()
    (gap,) = lines(tmp_path, "gap")
    assert (gap["output"], gap["missing"]) == ("llm.text", [1, 2])
    assert [line["text"] for line in lines(tmp_path, "turn")] == ["onefour"]


def test_files_are_complete_up_to_a_stop_in_the_middle_of_a_reply(sink, tmp_path, capsys):
    sink.feed(said("user_text", "Go on"), said("reply_text", "Once upon a", fin=False), sound(tone(50), 0))
    sink.feed(played(2400, 4))
    sink.run()
    sink.scheduler.close()
    assert lines(tmp_path, "turn")[-1]["heard"] == "Once"
    with wave.open(str(tmp_path / "reply-a-1.wav")) as file:
        assert file.getnframes() == 800
    assert "summary: 1 user turns, 1 replies, 1 interrupted" in capsys.readouterr().out


def test_any_session_id_makes_a_file_name():
    assert file_name("../a b/ü") == "..%2Fa%20b%2F%C3%BC"
    assert len(file_name("会" * 256)) < 150
    assert file_name("x" * 200) != file_name("x" * 201)


def test_sessions_do_not_mix(sink, tmp_path):
    for seq, session in enumerate("abab"):
        sink.feed(said("user_text", f"{session}{seq}", seq=seq // 2, fin=seq > 1, session_id=session))
    sink.run()
    assert {line["session_id"]: line["text"] for line in lines(tmp_path, "turn")} == {"a": "a0a2", "b": "b1b3"}


def test_what_the_user_said_in_a_flushed_segment_stays_said_and_what_never_happened_does_not(sink, tmp_path):
    sink.feed(control("flush", 3), said("user_text", "flushed", 1), said("reply_text", "old", 1))
    sink.feed(control("drop", 2), said("user_text", "dropped", 2))
    sink.run()
    assert [line["text"] for line in lines(tmp_path, "turn")] == ["flushed"]


def test_after_a_restart_the_same_conversation_goes_on(tmp_path):
    for restarts, text in enumerate(("before", "after")):
        driver = Driver(SinkStage(Journal(tmp_path), ReplyFiles(tmp_path)), PORTS, restarts=restarts)
        driver.advance(2000)
        driver.feed(said("user_text", text, segment_id=restarts + 1), sound(tone(20), 0, restarts + 1, fin=True))
        driver.run()
        with (tmp_path / "conversation.jsonl").open("a") as journal:
            journal.write('{"cut in the mid')
    written = [
        json.loads(line) for line in (tmp_path / "conversation.jsonl").read_text().splitlines() if line[-1] == "}"
    ]
    turns = [line for line in written if line["event"] == "turn"]
    assert [(line["text"], line["t_s"]) for line in turns] == [("before", 2.0), ("after", 4.0)]
    assert len(list(tmp_path.glob("reply-*.wav"))) == 2


def test_what_a_run_before_left_stays_until_this_one_begins(tmp_path):
    for name in ("conversation.jsonl", "reply-a-9.wav"):
        (tmp_path / name).write_text("earlier")
    stage = SinkStage(Journal(tmp_path), ReplyFiles(tmp_path))
    assert (tmp_path / "conversation.jsonl").read_text() == "earlier"
    Driver(stage, PORTS)
    assert (tmp_path / "conversation.jsonl").read_text() == ""
    assert not (tmp_path / "reply-a-9.wav").exists()


def test_a_full_disk_costs_one_line_and_the_files_but_not_the_conversation(sink, monkeypatch, caplog, capsys):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sink.stage._journal, "write", full)
    sink.feed(said("user_text", "one", 1), said("user_text", "two", 2))
    sink.run()
    assert caplog.text.count("No space left") == 1
    assert "two" in capsys.readouterr().out


def test_a_restart_finds_its_place_behind_any_torn_line(tmp_path):
    separator_in_a_text = '{"t_s": 1.5, "session_id": "a", "segment_id": 2, "text": "a\u2028b"}\n{"t_s": 9, "t'.encode()
    in_a_character = b'{"t_s": 1.5, "session_id": "a", "segment_id": 2}\n{"text": "\xe4\xbd'
    for torn in (separator_in_a_text, in_a_character, b""):
        (tmp_path / "conversation.jsonl").write_bytes(torn)
        assert Journal(tmp_path).begin(1) == ((1.5, ("a", 2)) if torn else None)


def test_sessions_that_end_leave_no_file_open(tmp_path):
    stage = SinkStage(Journal(tmp_path), ReplyFiles(tmp_path))
    driver = Driver(stage, PORTS)
    for n in range(300):
        driver.feed(replace(sound(tone(20), 0), session_id=f"s{n}"), control("end", 1, f"s{n}"))
        driver.run()
    assert not stage._replies._open
    assert len(list(tmp_path.glob("reply-*.wav"))) == 300


def crash(sink, port, node):
    sink.run()
    sink.intake.restarted([port], node)
    sink.run()


def failures(tmp_path):
    return [(line["segment_id"], line["output"], line["error"]) for line in lines(tmp_path, "error")]


def test_what_a_crashed_node_had_not_begun_to_send_is_an_error_too(sink, tmp_path):
    sink.feed(control("start"), said("user_text", "Done."), said("reply_text", "Done."), sound(tone(20), 0, fin=True))
    sink.feed(played(480, 5, fin=True), control("commit"), control("start", 2))
    crash(sink, "user_text", "stt")
    sink.feed(control("start", 3), said("user_text", "Three?", 3), control("commit", 3))
    crash(sink, "reply_text", "llm")
    sink.feed(said("user_text", "Four?", 4), said("reply_text", "Four.", 4))
    crash(sink, "reply_audio", "tts")
    sink.feed(said("user_text", "Five?", 5), said("reply_text", "Five.", 5), sound(tone(20), 0, 5))
    crash(sink, "played", "speaker")
    assert failures(tmp_path) == [
        (2, "stt.text", "restarted: node stt crashed"),
        (3, "llm.text", "restarted: node llm crashed"),
        (4, "tts.audio", "restarted: node tts crashed"),
        (5, "speaker.played", "restarted: node speaker crashed"),
    ]
    replies = [line for line in lines(tmp_path, "turn") if line["role"] == "assistant"]
    assert [(line["segment_id"], "error" in line) for line in replies] == [(1, False), (3, True), (4, True), (5, True)]


def test_a_reply_whose_speaker_crashed_was_heard_as_far_as_it_was_reported(sink, tmp_path):
    sink.feed(said("user_text", "Hm?"), said("reply_text", "Hi there."), sound(tone(20), 0, fin=True), played(480, 2))
    crash(sink, "played", "speaker")
    (reply,) = [line for line in lines(tmp_path, "turn") if line["role"] == "assistant"]
    assert (reply["heard"], reply["error"]) == ("Hi", "restarted: node speaker crashed")
    assert failures(tmp_path) == [(1, "speaker.played", "restarted: node speaker crashed")]


def test_what_a_crashed_vad_had_begun_is_told(sink, tmp_path):
    sink.feed(control("start"), said("user_text", "Hello?", speculative=True))
    crash(sink, "control", "vad")
    assert failures(tmp_path) == [(1, "vad.control", "restarted: node vad crashed")]
    assert [line["text"] for line in lines(tmp_path, "turn")] == ["Hello?"]


def test_a_sink_that_was_killed_tells_where_and_goes_on_in_its_files(tmp_path):
    killed = Driver(SinkStage(Journal(tmp_path), ReplyFiles(tmp_path)), PORTS)
    killed.feed(control("start"), sound(tone(20), 0))
    killed.run()
    again = Driver(SinkStage(Journal(tmp_path), ReplyFiles(tmp_path)), PORTS, restarts=1)
    again.feed(sound(tone(40), 2, fin=True), said("user_text", "Two?", 2))
    again.run()
    again.scheduler.close()
    assert failures(tmp_path) == [(1, "sink", "restarted: node sink crashed")]
    with wave.open(str(tmp_path / "reply-a-1.wav")) as file:
        assert file.getnframes() == len(tone(60))
