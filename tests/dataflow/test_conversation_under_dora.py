"""dataflow.yml itself under the real dora, with the real models and real recordings."""

import json
import re

import numpy as np
import pytest
import soundfile
from dora_run import ROOT, dora_run
from listening import plain_words, transcribed, word_errors
from transformers import AutoTokenizer

from dora_voice_llm import weights
from dora_voice_llm.config import SYSTEM_PROMPT
from dora_voice_speaker.fade import FADE_SAMPLES

RECORDINGS = ROOT / "tests/recordings"


def hold(recording, out_dir, **env):
    """The events of the conversation from this recording, which has to end by itself."""
    run = dora_run(ROOT / "dataflow.yml", ROOT, AUDIO_IN=RECORDINGS / f"{recording}.wav", OUT_DIR=out_dir, **env)
    assert run.returncode == 0, run.stdout
    return [json.loads(line) for line in (out_dir / "conversation.jsonl").read_text().splitlines()], run.stdout


def truth(recording):
    return [plain_words(part["text"]) for part in json.loads((RECORDINGS / f"{recording}.json").read_text())["speech"]]


def turns(events, role):
    return [event for event in events if event["event"] == "turn" and event["role"] == role]


def test_three_questions_get_three_spoken_answers(tmp_path):
    events, shown = hold("three-questions", tmp_path)
    assert [plain_words(turn["text"]) for turn in turns(events, "user")] == truth("three-questions")
    replies = turns(events, "assistant")
    assert len(replies) == 3
    errors = words = 0
    for reply in replies:
        wav = tmp_path / f"reply-default-{reply['segment_id']}.wav"
        assert soundfile.info(wav).samplerate == 24_000
        wrong, spoken = word_errors(reply["text"], transcribed(wav))
        errors, words = errors + wrong, words + spoken
    assert words
    assert errors / words <= 0.15
    assert not [event for event in events if event["event"] in ("gap", "error", "flush")]
    assert "What is the capital of France?" in shown
    assert "summary: 3 user turns, 3 replies" in shown


def test_an_interruption_stops_the_old_reply_and_the_new_question_is_answered(tmp_path):
    events, _ = hold("barge-in", tmp_path)
    assert [plain_words(turn["text"]) for turn in turns(events, "user")] == truth("barge-in")
    story, answer = turns(events, "assistant")
    assert len(story["heard"]) < len(story["text"])
    assert answer["text"]
    assert "heard" not in answer
    flush = next(event for event in events if event["event"] == "flush")
    old = [event for event in events if event["event"] == "played" and event["segment_id"] == story["segment_id"]]
    before = [event["samples"] for event in old if event["t_s"] <= flush["t_s"]]
    # Two senders: a report may be under way while the flush is, but nothing is played any more.
    assert old[-1]["samples"] - before[-1] <= 0.2 * 24_000
    assert [event["fin"] for event in old].count(True) == 1
    assert old[-1]["fin"]


def test_a_hum_pauses_the_reply_and_every_sample_of_it_is_heard(tmp_path):
    events, _ = hold("backchannel", tmp_path)
    assert [turn["role"] for turn in events if turn["event"] == "turn"] == ["user", "assistant"]
    assert [event["event"] for event in events if event["event"] in ("pause", "resume", "flush")] == ["pause", "resume"]
    (story,) = turns(events, "assistant")
    assert "heard" not in story
    reports = [event for event in events if event["event"] == "played"]
    resumed_s = next(event["t_s"] for event in events if event["event"] == "resume")
    held_at = max(report["samples"] for report in reports if report["t_s"] < resumed_s)
    reply, _ = soundfile.read(tmp_path / f"reply-default-{story['segment_id']}.wav", dtype="int16")
    played, _ = soundfile.read(tmp_path / "speaker.wav", dtype="int16")
    assert max(report["samples"] for report in reports) == len(reply)
    assert 0 < held_at < len(reply)
    # Silence says nothing: where nothing is played it is longer. Between the two parts are the fades.
    before, after = (part[part != 0] for part in np.split(reply, [held_at]))
    sound = played[played != 0]
    np.testing.assert_array_equal(sound[: len(before)], before)
    np.testing.assert_array_equal(sound[-len(after) :], after)
    assert len(sound) <= len(before) + len(after) + 2 * FADE_SAMPLES


@pytest.mark.parametrize("recording", ["resumed", "hesitation"])
def test_a_pause_within_a_sentence_leaves_one_turn_and_no_trace_of_its_first_half(tmp_path, recording):
    events, shown = hold(recording, tmp_path)
    taken_back = {event["segment_id"] for event in events if event["event"] == "drop"}
    assert taken_back
    (said,) = [turn for turn in turns(events, "user") if turn["segment_id"] not in taken_back]
    assert plain_words(said["text"]) == " ".join(truth(recording))
    (answer,) = [turn for turn in turns(events, "assistant") if turn["segment_id"] not in taken_back]
    assert answer["segment_id"] == said["segment_id"]
    too_soon = [e["samples"] for e in events if e["event"] == "played" and e["segment_id"] in taken_back]
    assert max(too_soon, default=0) <= 0.5 * 24_000
    # What the cache held when it answered is what a first turn with this text takes, to the token.
    turn = re.search(rf"segment={said['segment_id']} prefilled=(\d+) ahead=(\d+) reused=(\d+)", shown)
    assert turn
    assert sum(map(int, turn.groups())) == len(first_prompt(said["text"]))


def first_prompt(text):
    """The tokens that the llm has to read before it can answer this."""
    tokenizer = AutoTokenizer.from_pretrained(weights.installed())
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": text}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


def test_short_answers_are_four_turns(tmp_path):
    events, _ = hold("short-answers", tmp_path, PACE="fast")
    assert [plain_words(turn["text"]) for turn in turns(events, "user")] == truth("short-answers")
    assert len(turns(events, "assistant")) == 4


@pytest.mark.parametrize("recording", ["silence", "noise", "motor", "music"])
def test_what_is_no_speech_gives_no_turn_and_no_reply(tmp_path, recording):
    events, _ = hold(recording, tmp_path, PACE="fast")
    assert turns(events, "user") + turns(events, "assistant") == []
    assert list(tmp_path.glob("reply-*.wav")) == []
