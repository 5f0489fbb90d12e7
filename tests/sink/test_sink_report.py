"""`python -m dora_voice_sink.report`: what it writes, and what it says where it can't."""

import json
import os
import subprocess
import sys
import wave

import numpy as np
import pytest

from dora_voice_sink.report import main

PNG = b"\x89PNG\r\n\x1a\n"


def event(t_s, event, segment_id=1, session_id="default", **values):
    return {"t_s": t_s, "session_id": session_id, "segment_id": segment_id, "event": event, **values}


def exchange(question, answer, begin_s=1.0, segment_id=1, session_id="default", **reply):
    spoken = [
        event(
            begin_s + 10.5 / 10 + tenth / 10, "played", segment_id, session_id, samples=2400 * (tenth + 1), text_end=9
        )
        for tenth in range(10)
    ]
    return [
        event(begin_s, "start", segment_id, session_id, audio_ms=int(begin_s * 1000)),
        event(begin_s + 0.2, "hypothesis", segment_id, session_id, text=question),
        event(begin_s + 0.5, "commit", segment_id, session_id, audio_ms=int(begin_s * 1000 + 500)),
        event(begin_s + 0.6, "turn", segment_id, session_id, role="user", text=question),
        *spoken,
        event(begin_s + 2.1, "turn", segment_id, session_id, role="assistant", text=answer, **reply),
    ]


def journal(folder, events, torn=""):
    lines = "".join(json.dumps(one) + "\n" for one in events)
    (folder / "conversation.jsonl").write_text(lines + torn, encoding="utf-8")
    return folder


def sound(path, seconds=1.0, rate_hz=24_000):
    samples = np.random.default_rng(0).integers(-9000, 9000, round(seconds * rate_hz), dtype=np.int16)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(samples.tobytes())


def report(folder, *more):
    assert main([str(folder), *map(str, more)]) == 0
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_speaker_of_an_earlier_run_is_left_out(tmp_path, capsys):
    journal(tmp_path, exchange("Capital of Italy?", "Rome, of course."))
    for name in ("reply-default-1.wav", "speaker.wav"):
        sound(tmp_path / name)
    an_hour_ago = (tmp_path / "conversation.jsonl").stat().st_mtime - 3600
    os.utime(tmp_path / "speaker.wav", (an_hour_ago, an_hour_ago))
    report(tmp_path)
    assert f"{tmp_path / 'speaker.wav'}: older than this conversation" in capsys.readouterr().out


def test_a_conversation_becomes_a_page_and_a_picture(tmp_path, capsys):
    journal(tmp_path, exchange("Capital of Italy?", "Rome, of course."))
    for name in ("reply-default-1.wav", "speaker.wav"):
        sound(tmp_path / name)
    sound(tmp_path / "user.wav", 4, 16_000)
    page = report(tmp_path, "--user", tmp_path / "user.wav")
    for text in ("Capital of Italy?", "Rome, of course.", "450 ms", "end-of-turn wait", ">synthesised<", ">speaker<"):
        assert text in page
    assert (tmp_path / "report.png").read_bytes().startswith(PNG)
    assert capsys.readouterr().out.splitlines() == [
        f"wrote {tmp_path / name}" for name in ("report.html", "report.png")
    ]


def test_the_page_needs_nothing_from_outside(tmp_path):
    page = report(journal(tmp_path, exchange("Hi", "Hello")))
    for loading in ("src=", "url(", "@import", "<script", "<link", "http:", "https:"):
        assert loading not in page


def test_texts_from_speech_and_networks_stay_texts(tmp_path):
    bad = "<script>alert(1)</script>\" onload='x' & $\\frac$ \ud800\x00"
    events = exchange(bad, bad, session_id=bad) + exchange(bad, bad, session_id="b", heard=bad[:9], error=bad)
    events.append(event(3, "rejected", 7, bad, reason=bad))
    page = report(journal(tmp_path, events))
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;&quot; onload=&#x27;x&#x27; &amp; $") > 5


def test_a_reply_that_is_not_over_is_shown_as_far_as_it_was_written(tmp_path):
    events = [event(1, "commit"), event(1.4, "reply", text="Once <up"), event(1.5, "reply", text="on> a")]
    page = report(journal(tmp_path, [*events, event(1.6, "audio", samples=0)]))
    assert '<td class="text" dir="auto">Once &lt;upon&gt; a</td>' in page
    assert page.count('class="token"') == 2
    for text in (">written<", ">first words<", ">400 ms<", ">first audio<", ">600 ms<"):
        assert text in page


def test_an_error_is_told_also_where_nobody_said_anything(tmp_path):
    page = report(journal(tmp_path, [event(1, "error", output="sink", error="restarted: node sink crashed")]))
    assert "error: restarted: node sink crashed" in page


def test_what_was_not_heard_is_struck_out(tmp_path):
    page = report(journal(tmp_path, exchange("Story!", "Once upon a time.", heard="Once upon")))
    assert "Once upon<s> a time.</s>" in page
    assert ">interrupted<" in page


def test_every_session_has_its_own_panel(tmp_path):
    page = report(journal(tmp_path, exchange("one", "1", session_id="ann") + exchange("two", "2", session_id="bob")))
    assert [f"</span> {name}</h2>" in page for name in ("ann", "bob")] == [True, True]
    assert page.count("<section>") == 2


def test_a_torn_line_is_left_out_and_told(tmp_path, capsys):
    page = report(journal(tmp_path, exchange("Hi", "Hello"), torn='{"t_s": 9, "sess'))
    assert "Hello" in page
    assert "last line is torn" in page
    assert "note: The journal's last line is torn" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["7", "null", "[]", "{}", '{"t_s": 1e999}', '{"t_s": -1}', "[" * 5000, "\udcff"])
def test_lines_that_say_nothing_cost_only_themselves(tmp_path, line):
    folder = journal(tmp_path, exchange("Hi", "Hello"))
    written = (folder / "conversation.jsonl").read_bytes()
    (folder / "conversation.jsonl").write_bytes(line.encode(errors="surrogateescape") + b"\n" + written)
    assert "1 can't be read and are left out (line 1)" in report(folder).replace("&#x27;", "'")


def test_missing_and_damaged_sounds_are_told_on_the_page(tmp_path):
    journal(tmp_path, exchange("Hi", "Hello") + exchange("Bye", "See you", 5, 2))
    (tmp_path / "reply-default-2.wav").write_bytes(b"RIFF")
    (tmp_path / "speaker.wav").write_bytes(b"")
    page = report(tmp_path)
    for name, reason in (("reply-default-1.wav", "No such file"), ("reply-default-2.wav", "it ends within its header")):
        assert f"{tmp_path / name}: {reason}" in page
    assert f"{tmp_path / 'speaker.wav'}: it ends within its header" in page


def test_so_many_missing_sounds_do_not_fill_the_page(tmp_path):
    events = [one for number in range(50) for one in exchange("Hi", "Hello", 1 + 3 * number, number)]
    assert report(journal(tmp_path, events)).count("<li>") == 21


@pytest.mark.parametrize("events", [[], [event(1, "end", 0)]])
def test_a_conversation_in_which_nothing_was_said_says_so(tmp_path, events):
    assert "Nothing was said" in report(journal(tmp_path, events))
    assert (tmp_path / "report.png").read_bytes().startswith(PNG)


def test_a_missing_folder_journal_or_recording_is_one_line_and_exit_code_2(tmp_path, capsys):
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([str(tmp_path)]) == 2
    journal(tmp_path, exchange("Hi", "Hello"))
    assert main([str(tmp_path), "--user", str(tmp_path / "me.wav")]) == 2
    said = capsys.readouterr().err.splitlines()
    expected = ("no such folder", "expected the sink's journal there", "me.wav: No such file")
    assert len(said) == len(expected)
    assert all(part in line for part, line in zip(expected, said, strict=True))


def test_without_matplotlib_the_page_is_written_and_a_line_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (tmp_path / "report.png").write_bytes(b"of the conversation before")
    assert "Hello" in report(journal(tmp_path, exchange("Hi", "Hello")))
    assert not (tmp_path / "report.png").exists()
    assert 'pip install "dora-voice-sink[report]"' in capsys.readouterr().out


def test_it_is_a_command(tmp_path):
    command = [sys.executable, "-m", "dora_voice_sink.report", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_an_hour_of_a_thousand_turns_is_a_page_of_less_than_5_mb(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    question, answer = "What about <that> & the other thing? " * 2, "There is a lot to be said about it. " * 4
    events = [one for number in range(500) for one in exchange(question, answer, 1 + 7.2 * number, number)]
    for number in range(500):
        sound(tmp_path / f"reply-default-{number}.wav", 2)
    sound(tmp_path / "speaker.wav", 3600)
    sound(tmp_path / "user.wav", 3600, 8000)
    page = report(journal(tmp_path, events), "--user", tmp_path / "user.wav")
    assert len(page.encode()) < 5_000_000


def test_many_short_sessions_are_a_page_of_less_than_5_mb(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    events = [one for number in range(300) for one in exchange("Hi", "Hello", 1 + number, 1, f"caller {number}")]
    sound(tmp_path / "speaker.wav", 300)
    assert len(report(journal(tmp_path, events)).encode()) < 5_000_000
