"""The whole conversation in one process, wired as in dataflow.yml, on a sample clock, with fakes for the models
but the vad's."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import yaml

from dora_voice.messages import Audio, Played
from dora_voice.testing import Graph

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests/recordings"
DATAFLOW = yaml.safe_load((ROOT / "dataflow.yml").read_text())["nodes"]
TIMEOUT_MS = 120_000


def edges():
    return {f"{n['id']}/{port}": edge["source"] for n in DATAFLOW for port, edge in n["inputs"].items()}


@pytest.fixture
def conversation(tmp_path):
    def make(recording, texts, pace="realtime"):
        settings = {
            "source": {"audio_in": str(RECORDINGS / f"{recording}.wav"), "pace": pace},
            "vad": {},
            "stt": {"backend": "fake", "fake_texts": "|".join(texts)},
            "llm": {"backend": "fake"},
            "tts": {"backend": "fake"},
            "speaker": {"backend": "null", "pace": pace},
            "sink": {"out_dir": str(tmp_path)},
        }
        modules = {name: import_module(f"dora_voice_{name}.node") for name in settings}
        nodes = {name: (m.build(m.Config(**settings[name])), m.PORTS) for name, m in modules.items()}
        return Graph(nodes, edges())

    return make


def talk(graph):
    """Lets time pass until the session's last message has come out at the end."""
    while graph.clock.now_s * 1000 < TIMEOUT_MS:
        graph.advance(500)
        if any(message.finish for message in graph.drivers["speaker"].sent):
            return
    pytest.fail(f"no end after {TIMEOUT_MS} ms of the sample clock")


def events(tmp_path, *names):
    lines = [json.loads(line) for line in (tmp_path / "conversation.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] in names]


def test_three_questions_are_answered_in_order_and_to_the_end(conversation, tmp_path):
    graph = conversation("three-questions", ["One?", "Two?", "Three?"])
    talk(graph)
    assert [(turn["role"], turn["text"], "heard" in turn) for turn in events(tmp_path, "turn")] == [
        (role, text, False)
        for question in ("One?", "Two?", "Three?")
        for role, text in (("user", question), ("assistant", f"You said: {question}"))
    ]
    assert events(tmp_path, "gap", "error", "flush", "drop") == []
    for driver in graph.drivers.values():
        assert not driver.intake.counts


def test_what_the_user_says_meanwhile_interrupts_and_the_history_holds_what_was_heard(conversation, tmp_path):
    graph = conversation("barge-in", ["Tell me a story!", "Stop!"])
    histories = []
    model = graph.drivers["llm"].stage._service.model
    render = model.render

    def remember_and_render(messages, *, add_generation_prompt=True):
        histories.append(messages)
        return render(messages, add_generation_prompt=add_generation_prompt)

    model.render = remember_and_render
    talk(graph)
    turns = events(tmp_path, "turn")
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "assistant"]
    story, answer = turns[1], turns[3]
    assert 0 < len(story["heard"]) < len(story["text"])
    assert answer["text"] == "You said: Stop!"
    remembered = histories[-1][1]["content"]
    assert story["heard"].startswith(remembered)
    assert len(story["heard"]) - len(remembered) < 15, "at most the word that was cut"

    (flush,) = events(tmp_path, "flush")
    assert flush["segment_id"] == 2
    last_old = [m for m in graph.drivers["speaker"].sent if isinstance(m, Played) and m.segment_id == 1][-1]
    assert last_old.fin
    spoken = [m for m in graph.drivers["tts"].sent if isinstance(m, Audio)]
    first_new = next(n for n, m in enumerate(spoken) if m.segment_id == 2)
    assert all(m.segment_id == 2 or m.finish for m in spoken[first_new:])


def test_fast_waits_for_each_reply_and_says_the_same(conversation, tmp_path):
    graph = conversation("short-answers", ["1?", "2?", "3?", "4?"], pace="fast")
    talk(graph)
    texts = [turn["text"] for turn in events(tmp_path, "turn")]
    assert texts == [text for n in "1234" for text in (f"{n}?", f"You said: {n}?")]
    assert events(tmp_path, "flush", "gap", "error") == []


@pytest.mark.parametrize("recording", ["silence", "noise", "motor", "music"])
def test_what_is_no_speech_makes_no_turn(conversation, tmp_path, recording):
    talk(conversation(recording, ["?"], pace="fast"))
    assert events(tmp_path, "turn", "commit") == []


def test_the_same_recording_twice_gives_the_same_conversation(conversation, tmp_path):
    written = []
    for _ in range(2):
        graph = conversation("three-questions", ["One?", "Two?", "Three?"])
        talk(graph)
        graph.drivers["sink"].scheduler.close()
        written.append((tmp_path / "conversation.jsonl").read_text())
    assert written[0] == written[1]


def test_every_reply_is_written_sample_by_sample_as_it_was_synthesised(conversation, tmp_path):
    import soundfile

    graph = conversation("three-questions", ["One?", "Two?", "Three?"])
    talk(graph)
    for segment_id in (1, 2, 3):
        sent = [m.samples for m in graph.drivers["tts"].sent if isinstance(m, Audio) and m.segment_id == segment_id]
        written, rate = soundfile.read(tmp_path / f"reply-default-{segment_id}.wav", dtype="float32")
        assert rate == 24_000
        np.testing.assert_allclose(written, np.concatenate(sent), atol=1e-4)
