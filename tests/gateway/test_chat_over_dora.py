"""/ws/chat in the real dataflow, with the real small models in fp32."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from gateway.serving import ROOT, Client, Served, assistant, audio_of, media, talk, text_of, user
from listening import transcribed, word_errors

RECORDING = ROOT / "tests/recordings/three-questions.wav"
QUESTIONS = [
    "What is the capital of France?",
    "And of Italy?",
    "What is the largest planet?",
    "What do bees make?",
    "What color is the sky?",
    "How many days has a week?",
    "What is ice made of?",
    "Who wrote Hamlet?",
    "What do cows drink?",
    "What is the opposite of hot?",
]


def test_ten_turns_compute_their_own_tokens_only_and_are_answered_as_by_a_stateless_run(real: Served) -> None:
    async def chat() -> list[list[dict]]:
        history, turns = [], []
        async with Client(real, "/ws/chat") as client:
            for question in QUESTIONS:
                history.append(user(question))
                turns.append(await client.ask(history, generation={"max_new_tokens": 16}))
                history.append(assistant(turns[-1][-1]["text"]))
        return turns

    async def alone(history: list[dict]) -> str:
        async with Client(real, "/ws/chat") as client:
            return (await client.ask(history, generation={"max_new_tokens": 16}))[-1]["text"]

    turns = talk(chat())
    prefilled = [turn[0] for turn in turns]
    reused = [each["reused_tokens"] for each in prefilled]
    assert reused == sorted(set(reused)), "they grow"
    # Of the turn: the reply's end, the question, and the template's tokens around it.
    assert max(each["input_tokens"] - each["reused_tokens"] for each in prefilled[1:]) <= 24
    replies = [turn[-1]["text"] for turn in turns]
    assert "Paris" in replies[0]
    history: list[dict] = []
    for question, reply in zip(QUESTIONS, replies, strict=True):
        history.append(user(question))
        assert talk(alone(history)) == reply
        history.append(assistant(reply))


def test_streamed_text_adds_up_and_markdown_comes_as_it_is_written(real: Served) -> None:
    async def chat() -> list[dict]:
        async with Client(real, "/ws/chat") as client:
            question = user("Write a Python hello world program in a code block.")
            return await client.ask([question], streaming=True, generation={"max_new_tokens": 24}, request_id="r1")

    *chunks, done = talk(chat())
    assert chunks[0]["type"] == "prefill_done"
    assert text_of(chunks) == done["text"]
    assert "```" in done["text"]
    assert (done["generated_tokens"], done["finish_reason"], done["stopped"]) == (24, "length", False)
    assert audio_of([*chunks, done]).size == 0
    assert {message["request_id"] for message in (*chunks, done)} == {"r1"}


@pytest.mark.parametrize("streaming", [True, False])
def test_a_spoken_reply_says_its_text(real: Served, streaming: bool, tmp_path: Path) -> None:
    async def chat() -> list[dict]:
        async with Client(real, "/ws/chat") as client:
            question = user("What is the capital of France?")
            return await client.ask([question], streaming=streaming, tts={"enabled": True})

    *before, done = talk(chat())
    sound = audio_of([*before, done])
    assert ("audio_data" in done) is not streaming
    assert done["audio_sample_rate"] == 24_000
    soundfile.write(tmp_path / "reply.wav", sound, 24_000)
    errors, words = word_errors(done["text"], transcribed(tmp_path / "reply.wav"))
    assert errors <= words // 3


def test_the_generation_is_chosen_by_the_request(real: Served) -> None:
    async def chat(**generation) -> dict:
        async with Client(real, "/ws/chat") as client:
            return (await client.ask([user("Count from one to ten.")], generation=generation))[-1]

    assert talk(chat(max_new_tokens=5))["generated_tokens"] == 5
    assert "." not in talk(chat(max_new_tokens=40, stop=["."]))["text"]
    sampled = {"max_new_tokens": 12, "temperature": 1.5, "top_p": 0.9, "top_k": 50, "repetition_penalty": 1.1}
    first, again, other = (talk(chat(**sampled, seed=seed))["text"] for seed in (1, 1, 2))
    assert first == again != other
    longer = {"max_new_tokens": 60, "length_penalty": 3.0}
    assert talk(chat(**longer))["generated_tokens"] >= talk(chat(max_new_tokens=60))["generated_tokens"]


def test_a_system_message_is_what_the_model_is_told_first(real: Served) -> None:
    async def chat(*before: dict) -> int:
        async with Client(real, "/ws/chat") as client:
            asked = [*before, user("Hello.")]
            return (await client.ask(asked, generation={"max_new_tokens": 1}))[0]["input_tokens"]

    told = {
        "role": "system",
        "content": "You are a pirate who says arrr and hates land with all of your heart, always.",
    }
    assert talk(chat(told)) > talk(chat())


def test_a_recording_is_a_question_between_other_parts(real: Served) -> None:
    async def chat(part: dict) -> list[dict]:
        async with Client(real, "/ws/chat") as client:
            before = {"type": "text", "text": "Answer these: "}
            return await client.ask([user([before, part])], generation={"max_new_tokens": 30})

    samples, rate = soundfile.read(RECORDING, dtype="float32")
    raw = {"format": "f32le", "sample_rate": rate}
    for part in (media("audio", RECORDING.read_bytes()), media("audio", samples.astype("<f4").tobytes(), **raw)):
        done = talk(chat(part))[-1]
        assert done["type"] == "done", done
        assert "Paris" in done["text"]


def test_nobody_speaking_in_a_recording_is_an_error_that_says_where(real: Served) -> None:
    async def chat() -> dict:
        async with Client(real, "/ws/chat") as client:
            silence = media("audio", np.zeros(16_000, "<f4").tobytes(), format="f32le")
            return (await client.ask([user("Hi."), assistant("Hello."), user([silence])]))[-1]

    failed = talk(chat())
    assert (failed["code"], failed["error"].split(":")[0]) == ("no_speech", "messages[2].content")


def test_what_the_model_does_not_take_is_refused_by_place_and_name(real: Served) -> None:
    async def chat(part: dict, **fields) -> dict:
        async with Client(real, "/ws/chat") as client:
            return (await client.ask([user([{"type": "text", "text": "See: "}, part])], **fields))[-1]

    for kind in ("image", "video"):
        failed = talk(chat(media(kind, b"anything")))
        assert failed["code"] == "unsupported_part"
        assert failed["error"].startswith("messages[0].content[1]: SmolLM2-135M-Instruct")
        assert failed["error"].endswith(f"not {kind}")
    text = {"type": "text", "text": "this"}
    for fields in (
        {"omni_mode": True},
        {"image": {"max_slice_nums": 2}},
        {"enable_thinking": True},
        {"use_tts_template": True},
    ):
        failed = talk(chat(text, **fields))
        assert failed["code"] == "unsupported_field"
        assert next(iter(fields)) in failed["error"]
    voice = {"enabled": True, "ref_audio_data": "UklGRg=="}
    assert "ref_audio_data" in talk(chat(text, tts=voice))["error"]


def test_a_reply_is_stopped_and_the_next_request_is_answered(real: Served) -> None:
    async def chat() -> tuple[list[dict], list[dict]]:
        async with Client(real, "/ws/chat") as client:
            story = [user("Tell me a very long story about a dragon.")]
            await client.send({"messages": story, "streaming": True, "tts": {"enabled": True}})
            stopped = await client.until("chunk")
            await client.send({"type": "stop"})
            stopped += await client.until("done", "error")
            return stopped, await client.ask([user("What is the capital of France?")])

    stopped, after = talk(chat())
    assert stopped[-1]["stopped"] is True
    assert stopped[-1]["finish_reason"] == "stopped"
    assert 0 < stopped[-1]["generated_tokens"] < 100
    assert [message["type"] for message in after] == ["prefill_done", "done"]
    assert "Paris" in after[-1]["text"]


def test_a_stop_before_the_first_word_is_done_too(real: Served) -> None:
    async def chat() -> tuple[dict, dict]:
        async with Client(real, "/ws/chat") as client:
            long = " ".join(QUESTIONS * 6)
            await client.send({"messages": [user(long)], "request_id": "long"})
            await client.send({"type": "stop"})
            stopped = (await client.until("done", "error"))[-1]
            return stopped, (await client.ask([user("Hello.")], generation={"max_new_tokens": 3}))[-1]

    stopped, after = talk(chat())
    assert (stopped["type"], stopped["request_id"], stopped["stopped"]) == ("done", "long", True)
    assert (after["type"], after["stopped"]) == ("done", False)


def test_several_requests_on_one_connection_are_answered_in_order(real: Served) -> None:
    async def chat() -> list[dict]:
        async with Client(real, "/ws/chat") as client:
            for number in range(3):
                asked = {"messages": [user("Hello.")], "request_id": str(number), "generation": {"max_new_tokens": 3}}
                await client.send(asked)
            return [(await client.until("done"))[-1] for _ in range(3)]

    assert [done["request_id"] for done in talk(chat())] == ["0", "1", "2"]


def test_the_protocol_is_described_where_it_is_served(real: Served) -> None:
    status, served = real.get("/protocol.json")
    assert status == 200
    assert json.loads(served) == json.loads((ROOT / "nodes/gateway/protocol.json").read_text())
