"""/ws/stream in the real dataflow: with the real small models in fp32, and with fakes where nodes are killed."""

from __future__ import annotations

import base64
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from gateway.serving import FAKES, ROOT, Client, Served, assistant, audio_of, frozen, media, serving, talk, user
from listening import transcribed, word_errors

from dora_voice.audio import resample, to_int16

LABEL = "anna"
RECORDINGS = ROOT / "tests/recordings"
FRANCE = "What is the capital of France?"
STORY = "Tell me a very long story about a dragon."
SILENT = {"generate_audio": False}
CHUNK_UNIT = 960
"""40 ms of 24 kHz."""


class Conversation:
    """A client of /ws/stream that calls its session by one label and numbers its requests."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._count = 0

    async def send(self, kind: str, **fields: Any) -> str:
        self._count += 1
        request_id = f"{kind}-{self._count}"
        label = {} if "request" in fields else {"session_id": LABEL}
        await self.client.send({"type": kind, "request_id": request_id, **label, **fields})
        return request_id

    async def ask(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """A request, and everything that comes of it, which has to bear its name."""
        request_id = await self.send(kind, **fields)
        return await self.all_of(request_id)

    async def all_of(self, request_id: str) -> list[dict[str, Any]]:
        ends = ("prefilled", "response", "rollback", "done", "history", "model", "error")
        messages = await self.client.until(*ends)
        assert {message.get("request_id") for message in messages} == {request_id}, messages
        assert {message["session_id"] for message in messages} == {LABEL}
        return messages

    async def prefill(self, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
        said = {"session_id": LABEL, "messages": list(messages), "is_last_chunk": True, **fields}
        return (await self.ask("prefill", request=said))[-1]

    async def generate(self, most_tokens: int = 16, **fields: Any) -> list[dict[str, Any]]:
        return await self.ask(
            "generate", **{"streaming": SILENT, "generation": {"max_new_tokens": most_tokens}} | fields
        )

    async def speak(self, samples: np.ndarray, rate: int, kind: str = "f32le", **last: Any) -> str:
        """Says a recording in pieces of 200 ms. last: of the last piece. Returns its request_id."""
        sound = to_int16(samples).astype("<i2") if kind == "s16le" else samples.astype("<f4")
        *pieces, final = np.array_split(sound, max(1, len(sound) * 5 // rate))
        about = {"format": kind, "sample_rate": rate, **({"endpointing": True} if last.get("endpointing") else {})}
        for piece in pieces:
            await self.send("audio", data=encoded(piece), **about)
        return await self.send(
            "audio", data=encoded(final), **about, **{k: v for k, v in last.items() if k not in about}
        )


@asynccontextmanager
async def conversation(served: Served) -> AsyncIterator[Conversation]:
    async with Client(served, "/ws/stream") as client:
        yield Conversation(client)


def encoded(samples: np.ndarray) -> str:
    return base64.b64encode(samples.tobytes()).decode()


def recording(name: str, begin_s: float, end_s: float) -> np.ndarray:
    samples, rate = soundfile.read(RECORDINGS / f"{name}.wav", dtype="float32")
    return samples[round(begin_s * rate) : round(end_s * rate)]


def capital(rate: int = 16_000) -> np.ndarray:
    return resample(recording("three-questions", 0.8, 3.0), 16_000, rate)


def assert_said(text: str, sound: np.ndarray, folder: Path) -> None:
    soundfile.write(folder / "reply.wav", sound, 24_000)
    errors, words = word_errors(text, transcribed(folder / "reply.wav"))
    # Two of six: `France is` may be heard as `Francis`.
    assert errors <= words // 3


def chunks_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message["chunk"] for message in messages if message["type"] == "chunk"]


def said_in(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk.get("text_delta", "") for chunk in chunks)


def response_of(messages: list[dict[str, Any]]) -> dict[str, Any]:
    assert messages[-1]["type"] == "response", messages[-1]
    return messages[-1]["response"]


# A conversation


def test_a_message_comes_in_pieces_and_is_answered_in_numbered_chunks(real: Served) -> None:
    async def chat() -> tuple[list[dict], list[dict]]:
        async with conversation(real) as anna:
            pieces = ["What is the ", "capital of ", "France?"]
            prefilled = [
                await anna.prefill(user(piece), is_last_chunk=index == 2) for index, piece in enumerate(pieces)
            ]
            return prefilled, await anna.generate()

    async def at_once() -> tuple[dict, list[dict]]:
        async with conversation(real) as anna:
            return await anna.prefill(user(FRANCE)), await anna.generate()

    prefilled, reply = talk(chat())
    whole, same_reply = talk(at_once())
    assert [each["result"]["session_id"] for each in prefilled] == [LABEL] * 3
    usages = [each["result"]["usage"] for each in prefilled]
    assert all(later["reused_tokens"] > 0 for later in usages[1:])
    assert usages[-1]["input_tokens"] == whole["result"]["usage"]["input_tokens"]
    chunks, response = chunks_of(reply), response_of(reply)
    assert [chunk["chunk_index"] for chunk in chunks] == list(range(len(chunks)))
    assert [chunk["is_final"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert all(chunk["duration_ms"] >= 0 for chunk in chunks)
    assert said_in(chunks) == response["full_text"] == response_of(same_reply)["full_text"]
    assert "Paris" in response["full_text"]
    assert (response["session_id"], response["success"], response["finish_reason"]) == (LABEL, True, "end")
    assert response["total_chunks"] == len(chunks)
    assert response["total_duration_ms"] > 0
    assert response["usage"]["generated_tokens"] > 0
    assert not any("audio_data" in each for each in (*chunks, response))


def test_a_reply_is_spoken_in_chunks_of_the_length_asked_for(real: Served, tmp_path: Path) -> None:
    async def chat() -> list[dict]:
        async with conversation(real) as anna:
            await anna.prefill(user(FRANCE), streaming={"generate_audio": True, "audio_token_chunk_size": 7})
            # As the request before said.
            return await anna.ask("generate", generation={"max_new_tokens": 16})

    reply = talk(chat())
    chunks, response = chunks_of(reply), response_of(reply)
    assert said_in(chunks) == response["full_text"]
    *full, rest = [len(base64.b64decode(chunk["audio_data"])) // 4 for chunk in chunks if "audio_data" in chunk]
    assert set(full) == {7 * CHUNK_UNIT}
    assert 0 < rest <= 7 * CHUNK_UNIT
    sound = audio_of(chunks)
    assert response["audio_sample_rate"] == 24_000
    assert response["audio_duration_ms"] == pytest.approx(len(sound) / 24)
    assert_said(response["full_text"], sound, tmp_path)


def test_complete_is_one_response_with_all_of_its_sound(real: Served, tmp_path: Path) -> None:
    async def chat() -> list[dict]:
        async with conversation(real) as anna:
            asked = {"session_id": LABEL, "messages": [user(FRANCE)], "generation": {"max_new_tokens": 16}}
            return [
                *await anna.ask("complete", request=asked),
                *await anna.ask("complete", request=asked | {"streaming": SILENT, "messages": [user("And of Italy?")]}),
            ]

    spoken, written = talk(chat())
    response = response_of([spoken])
    assert (response["session_id"], response["total_chunks"]) == (LABEL, 0)
    sound = audio_of([response])
    assert response["audio_duration_ms"] == pytest.approx(len(sound) / 24)
    assert_said(response["full_text"], sound, tmp_path)
    assert "audio_data" not in response_of([written])
    assert response_of([written])["audio_duration_ms"] == 0


def test_what_was_said_is_told_edited_reset_and_ended(real: Served) -> None:
    async def chat() -> dict[str, Any]:
        async with conversation(real) as anna:
            unknown = [(await anna.ask(kind))[-1] for kind in ("history", "generate", "reset", "end")]
            await anna.prefill(user(FRANCE))
            reply = await anna.generate()
            history = (await anna.ask("history"))[-1]
            edited = [user("What is two plus two?"), assistant("Four."), user("And three plus three?")]
            request = {"session_id": LABEL, "messages": edited, "is_last_chunk": True}
            prefilled = (await anna.ask("edit", request=request))[-1]
            edited_history = (await anna.ask("history"))[-1]
            reset = (await anna.ask("reset"))[-1]
            reset_history = (await anna.ask("history"))[-1]
            ended = (await anna.ask("end"))[-1]
            after_end = (await anna.ask("history"))[-1]
            again = await anna.prefill(user(FRANCE))
            return locals()

    seen = talk(chat())
    for failed in seen["unknown"]:
        assert (failed["type"], failed["code"]) == ("error", "unknown_session")
        assert "stream-" not in failed["error"], "the dataflow's own name of the session"
    text = response_of(seen["reply"])["full_text"]
    assert seen["history"]["messages"] == [user(FRANCE), assistant(text)]
    assert seen["edited_history"]["messages"] == seen["edited"]
    assert seen["prefilled"]["result"]["usage"]["reused_tokens"] > 0
    assert (seen["reset"]["type"], seen["ended"]["type"]) == ("done", "done")
    assert seen["reset_history"]["messages"] == []
    assert seen["after_end"]["code"] == "unknown_session"
    assert seen["again"]["type"] == "prefilled"


def test_the_model_is_described_before_anything_was_said(real: Served) -> None:
    async def chat() -> dict:
        async with conversation(real) as anna:
            return (await anna.ask("model"))[-1]

    model = talk(chat())
    assert model["name"].startswith("SmolLM2-135M-Instruct")
    assert model["parts"] == ["audio", "text"]
    assert "generate_audio" in model["fields"]


def test_a_session_has_settings_that_requests_change_field_by_field(real: Served) -> None:
    async def chat() -> dict[str, Any]:
        async with conversation(real) as anna:
            plain = await anna.prefill(user(FRANCE))
            await anna.ask("end")
            settings = {"system_prompt": "You are a pirate who hates land. " * 5, "generation": {"max_new_tokens": 4}}
            done = (await anna.ask("session", settings=settings))[-1]
            told = await anna.prefill(user(FRANCE))
            by_session = await anna.ask("generate", streaming=SILENT)
            await anna.prefill(user(FRANCE))
            # What is left open is as the session has it.
            merged = await anna.ask("generate", streaming=SILENT, generation={"repetition_penalty": 1.2})
            await anna.prefill(user(FRANCE), generation={"max_new_tokens": 3})
            by_prefill = await anna.ask("generate", streaming=SILENT)
            await anna.prefill(user(STORY))
            by_generate = await anna.generate(6)
            language = (await anna.ask("session", settings={"language": "de"}))[-1]
            german = await anna.prefill(user(FRANCE))
            voice = (await anna.ask("session", settings={"voice": "amy"}))[-1]
            return locals()

    seen = talk(chat())
    assert seen["done"]["type"] == seen["language"]["type"] == "done"
    tokens = {name: seen[name]["result"]["usage"]["input_tokens"] for name in ("plain", "told", "german")}
    assert tokens["told"] > tokens["plain"]
    counts = {
        name: response_of(seen[name])["usage"]["generated_tokens"]
        for name in ("by_session", "merged", "by_prefill", "by_generate")
    }
    assert counts == {"by_session": 4, "merged": 4, "by_prefill": 3, "by_generate": 6}
    assert response_of(seen["by_session"])["finish_reason"] == "length"
    assert seen["voice"]["code"] == "unsupported_field"
    assert "voice" in seen["voice"]["error"]


@pytest.mark.parametrize("kind", ["generate", "complete", "prefill"])
def test_a_voice_that_cannot_be_had_is_refused_by_name_and_changes_nothing(real: Served, kind: str) -> None:
    fields = {"ref_audio_data": "UklGRg==", "ref_audio_path": "/etc/passwd", "tts_sampling": {"temperature": 0.5}}

    async def chat() -> tuple[list[dict], list[dict]]:
        async with conversation(real) as anna:
            await anna.prefill(user(FRANCE), streaming=SILENT)
            refused = []
            for name, value in fields.items():
                streaming = {"generate_audio": False, name: value}
                request = {"session_id": LABEL, "messages": [user("Hi.")], "streaming": streaming}
                asked = {"streaming": streaming} if kind == "generate" else {"request": request}
                refused.append((await anna.ask(kind, **asked))[-1])
            return refused, await anna.ask("generate", generation={"max_new_tokens": 16})

    refused, after = talk(chat())
    for name, failed in zip(fields, refused, strict=True):
        assert failed["code"] == "unsupported_field", failed
        assert name in failed["error"]
    assert "Paris" in response_of(after)["full_text"]


@pytest.mark.parametrize("label", ["../../x", "\0\n'\"; DROP", "ü𝕏" * 128, "a" * 256])
def test_any_label_is_only_a_label(real: Served, label: str) -> None:
    async def chat() -> list[dict]:
        async with Client(real, "/ws/stream") as client:
            said = {"session_id": label, "messages": [user("Hi.")], "is_last_chunk": True}
            first = await client.request(type="prefill", request=said)
            generate = {"streaming": SILENT, "generation": {"max_new_tokens": 2}}
            reply = await client.request(type="generate", session_id=label, **generate)
            other = await client.request(type="history", session_id="another")
            return [*first, *reply, other[-1], *await client.request(type="history", session_id=label)]

    *messages, refused, history = talk(chat())
    assert {message["session_id"] for message in (*messages, history)} == {label}
    assert messages[0]["result"]["session_id"] == messages[-1]["response"]["session_id"] == label
    assert (refused["code"], refused["session_id"]) == ("bad_request", "another")
    assert len(history["messages"]) == 2


def test_what_is_no_request_is_refused_with_its_own_id(real: Served) -> None:
    async def chat() -> list[dict]:
        async with Client(real, "/ws/stream") as client:
            wrong = [
                {"type": "generate", "session_id": "a" * 257},
                {"type": "generate", "session_id": ""},
                {"type": "generate", "session_id": LABEL, "loud": True},
                {"type": "sing", "session_id": LABEL},
                {"type": "prefill", "request": {"session_id": LABEL, "messages": []}},
                {"type": "audio", "session_id": LABEL, "data": "!"},
                {"type": "audio", "session_id": LABEL, "data": "", "sample_rate": 7_999},
                {"type": "audio", "session_id": LABEL, "data": "", "format": "mp3"},
            ]
            return [(await client.request(request_id=str(index), **each))[-1] for index, each in enumerate(wrong)]

    refused = talk(chat())
    assert [each["code"] for each in refused] == ["bad_request"] * len(refused)
    assert [each["request_id"] for each in refused] == [str(index) for index in range(len(refused))]
    for named, each in zip(
        ("session_id", "session_id", "loud", "sing", "messages", "data", "sample_rate", "format"), refused, strict=True
    ):
        assert named in each["error"]


# What acts while a reply is made


@pytest.mark.parametrize("speaks", [True, False])
def test_a_reply_is_stopped_and_told_before_the_stop_is_done(real: Served, speaks: bool) -> None:
    async def chat() -> dict[str, Any]:
        async with conversation(real) as anna:
            await anna.prefill(user(STORY))
            running = await anna.send("generate", streaming={"generate_audio": speaks})
            begun = await anna.client.until("chunk")
            stop = await anna.send("stop")
            rest = await anna.all_of(running)
            done = await anna.all_of(stop)
            history = (await anna.ask("history"))[-1]
            await anna.prefill(user(FRANCE))
            return {"begun": begun, "rest": rest, "done": done, "history": history, "after": await anna.generate()}

    seen = talk(chat())
    response = response_of(seen["rest"])
    assert response["finish_reason"] == "stopped"
    assert 0 < response["usage"]["generated_tokens"] < 120
    chunks = chunks_of([*seen["begun"], *seen["rest"]])
    assert response["total_chunks"] == len(chunks)
    assert chunks[-1]["is_final"]
    assert [message["type"] for message in seen["done"]] == ["done"]
    heard = seen["history"]["messages"][1:]
    assert len(heard) <= 1
    assert all(response["full_text"].startswith(message["content"].strip()) for message in heard)
    assert response_of(seen["after"])["finish_reason"] in ("end", "length")


def test_a_stop_when_nothing_runs_is_done(real: Served) -> None:
    async def chat() -> list[dict]:
        async with conversation(real) as anna:
            return [*await anna.ask("stop"), *await anna.ask("stop")]

    assert [message["type"] for message in talk(chat())] == ["done", "done"]


@pytest.mark.parametrize("speaks", [True, False])
def test_a_rollback_while_a_reply_is_made_restores_every_token(real: Served, speaks: bool) -> None:
    async def rolled_back() -> dict[str, Any]:
        async with conversation(real) as anna:
            before = await anna.prefill(user(STORY))
            streaming = {"generate_audio": speaks, "enable_speculative_snapshot": True}
            running = await anna.send("generate", streaming=streaming)
            await anna.client.until("chunk")
            rollback = await anna.send("rollback")
            response = response_of(await anna.all_of(running))
            result = (await anna.all_of(rollback))[-1]["result"]
            history = (await anna.ask("history"))[-1]["messages"]
            second = (await anna.ask("rollback"))[-1]["result"]
            return {
                "before": before,
                "response": response,
                "result": result,
                "second": second,
                "history": history,
                "next": await anna.generate(12),
            }

    async def fresh() -> tuple[dict, dict]:
        async with conversation(real) as anna:
            return await anna.prefill(user(STORY)), response_of(await anna.generate(12))

    seen = talk(rolled_back())
    before, reply = talk(fresh())
    assert seen["response"]["finish_reason"] == "stopped"
    assert seen["result"] == {"success": True, "restored_position": before["result"]["usage"]["input_tokens"]}
    assert seen["history"] == [user(STORY)]
    assert seen["second"]["success"] is False
    assert seen["second"]["reason"]
    after = response_of(seen["next"])
    assert after["full_text"] == reply["full_text"]
    assert after["usage"]["input_tokens"] == reply["usage"]["input_tokens"]


def test_a_rollback_without_a_snapshot_says_why_not(real: Served) -> None:
    async def chat() -> list[dict]:
        async with conversation(real) as anna:
            first = (await anna.ask("rollback"))[-1]["result"]
            await anna.prefill(user(FRANCE))
            await anna.generate()
            return [first, (await anna.ask("rollback"))[-1]["result"]]

    for result in talk(chat()):
        assert result["success"] is False
        assert "snapshot" in result["reason"] or "begun" in result["reason"]
        assert "stream-" not in result["reason"]


@pytest.mark.parametrize("act", ["stop", "rollback", "reset", "end"])
def test_what_waits_behind_it_never_begins_and_everything_ends_once(real: Served, act: str) -> None:
    async def chat() -> tuple[list[str], str, list[dict], list[dict]]:
        async with conversation(real) as anna:
            await anna.prefill(user(STORY))
            running = await anna.send("generate", streaming=SILENT | {"enable_speculative_snapshot": True})
            await anna.client.until("chunk")
            request = {"session_id": LABEL, "messages": [user("Hi.")], "is_last_chunk": True}
            waiting = [
                await anna.send("prefill", request=request),
                await anna.send("generate"),
                await anna.send("session", settings={"language": "de"}),
                await anna.speak(capital(), 16_000, is_last_chunk=True),
            ]
            last = await anna.send(act)
            seen: list[dict] = []
            while not seen or seen[-1].get("request_id") != last:
                seen.append(await anna.client.receive())
            after = [await anna.prefill(user(FRANCE)), *await anna.generate()]
            return waiting, running, seen, after

    waiting, running, seen, after = talk(chat())
    stopped = [message for message in seen if message["type"] == "error"]
    assert [message["request_id"] for message in stopped] == waiting
    assert {message["code"] for message in stopped} == {"stopped"}
    (response,) = [message for message in seen if message["type"] == "response"]
    assert response["request_id"] == running
    assert response["response"]["finish_reason"] == "stopped"
    assert [message["type"] for message in seen][-2] == "response", "the running reply ends before"
    assert response_of(after)["success"]


# What is said live


@pytest.mark.parametrize(("rate", "kind"), [(8_000, "f32le"), (16_000, "s16le"), (44_100, "f32le"), (48_000, "s16le")])
def test_what_is_said_until_the_last_chunk_is_written_down_and_answered(real: Served, rate: int, kind: str) -> None:
    async def chat() -> tuple[list[dict], list[dict]]:
        async with conversation(real) as anna:
            request_id = await anna.speak(capital(rate), rate, kind, is_last_chunk=True)
            return await anna.all_of(request_id), await anna.generate()

    (transcript, prefilled), reply = talk(chat())
    assert transcript["type"] == "transcript"
    assert word_errors(FRANCE, transcript["text"])[0] == 0
    assert prefilled["type"] == "prefilled"
    assert "Paris" in response_of(reply)["full_text"]


@pytest.mark.parametrize(("rate", "kind"), [(16_000, "f32le"), (44_100, "s16le")])
def test_the_end_of_what_is_said_is_found_by_the_server(real: Served, rate: int, kind: str) -> None:
    async def chat() -> list[list[dict]]:
        async with conversation(real) as anna:
            # Two questions, and six seconds in between, faster than they were said.
            said = resample(recording("three-questions", 0, 13), 16_000, rate)
            await anna.speak(said, rate, kind, endpointing=True)
            utterances = [await anna.client.until("prefilled", "error") for _ in range(2)]
            # And then the client finds out itself.
            by_client = await anna.speak(capital(), 16_000, is_last_chunk=True)
            return [*utterances, await anna.all_of(by_client)]

    utterances = talk(chat())
    assert [[message["type"] for message in each] for each in utterances] == [["transcript", "prefilled"]] * 3
    texts = [each[0]["text"] for each in utterances]
    for truth, text in zip((FRANCE, "How many days are there in a week?", FRANCE), texts, strict=True):
        assert word_errors(truth, text)[0] == 0, texts


def test_a_whole_recording_in_one_piece_loses_nothing(real: Served) -> None:
    async def chat() -> list[dict]:
        async with conversation(real) as anna:
            said = recording("three-questions", 0, 6)
            await anna.send("audio", data=encoded(said), endpointing=True)
            return await anna.client.until("prefilled", "error")

    transcript, _ = talk(chat())
    assert word_errors(FRANCE, transcript["text"])[0] == 0


def test_when_nobody_speaks_the_transcript_is_empty_and_nothing_is_read(real: Served) -> None:
    async def chat(samples: np.ndarray) -> tuple[list[dict], dict]:
        async with conversation(real) as anna:
            await anna.send("audio", data=encoded(samples), is_last_chunk=True)
            return await anna.client.until("transcript", "prefilled", "error"), (await anna.ask("history"))[-1]

    for samples in (np.zeros(0, "<f4"), np.zeros(10, "<f4"), np.zeros(32_000, "<f4")):
        (transcript,), history = talk(chat(samples))
        assert (transcript["type"], transcript["text"]) == ("transcript", "")
        assert history["code"] == "unknown_session", "nothing has begun"


def test_sound_that_cannot_be_read_ends_its_utterance_and_nothing_else(real: Served) -> None:
    too_long = {"data": encoded(np.zeros(8_000 * 121, "<i2")), "format": "s16le", "sample_rate": 8_000}
    half = {"data": base64.b64encode(bytes(5)).decode()}
    half_int = {"data": base64.b64encode(bytes(5)).decode(), "format": "s16le"}
    nan = {"data": encoded(np.array([0, np.nan], "<f4"))}
    infinite = {"data": encoded(np.array([0, np.inf], "<f4"))}

    async def chat() -> tuple[list[dict], list[dict]]:
        async with conversation(real) as anna:
            refused = []
            for bad in (half, half_int, nan, infinite, too_long):
                refused += await anna.ask("audio", **bad)
                # The rest of that utterance.
                await anna.send("audio", data=encoded(capital()), is_last_chunk=True)
            request_id = await anna.speak(capital(), 16_000, is_last_chunk=True)
            return refused, await anna.all_of(request_id)

    refused, (transcript, _) = talk(chat())
    assert [failed["code"] for failed in refused] == ["bad_request"] * 4 + ["too_large"]
    for named, failed in zip(("5 bytes", "5 bytes", "NaN", "infinite", "AUDIO_S=120"), refused, strict=True):
        assert named in failed["error"]
    assert word_errors(FRANCE, transcript["text"])[0] == 0


def test_recordings_are_parts_of_messages(real: Served) -> None:
    async def chat(part: dict[str, Any]) -> tuple[dict, dict, list[dict]]:
        async with conversation(real) as anna:
            prefilled = await anna.prefill(user([{"type": "text", "text": "Answer: "}, part]))
            return prefilled, (await anna.ask("history"))[-1], await anna.generate()

    pcm = to_int16(capital(24_000)).astype("<i2").tobytes()
    for part in (
        media("audio", (RECORDINGS / "three-questions.wav").read_bytes()),
        media("audio", pcm, format="s16le", sample_rate=24_000),
    ):
        prefilled, history, reply = talk(chat(part))
        assert prefilled["type"] == "prefilled", prefilled
        heard = history["messages"][0]["content"]
        assert "capital of France" in (heard if isinstance(heard, str) else "".join(each["text"] for each in heard))
        assert "Paris" in response_of(reply)["full_text"]


def test_parts_that_cannot_be_read_are_refused_by_place(real: Served) -> None:
    silence = media("audio", bytes(64_000), format="f32le")
    too_loud = media("audio", np.full(8_000, 3e38, "<f4").tobytes(), format="f32le", sample_rate=8_000)

    async def chat(part: dict[str, Any]) -> dict:
        async with conversation(real) as anna:
            return await anna.prefill(user("Hi."), assistant("Hello."), user([part]))

    for part, code in (
        (silence, "no_speech"),
        (too_loud, "bad_request"),
        (media("audio", b"?"), "bad_request"),
        (media("image", b"?"), "unsupported_part"),
    ):
        failed = talk(chat(part))
        assert failed["code"] == code, failed
        assert failed["error"].startswith("messages[2].content")


# A node that stalls, nodes that crash


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("killed"), **FAKES, REQUEST_S="10", PLACES="1") as served:
        yield served


def test_a_request_that_waits_for_a_place_is_told_where_it_stands_and_can_be_stopped(killed: Served) -> None:
    async def chat() -> tuple[list[dict], list[dict], list[dict], list[dict]]:
        async with conversation(killed) as anna, conversation(killed) as ben:
            with frozen(killed, "dora-voice-stt", signal.SIGCONT):
                first = await anna.send("audio", data=encoded(capital()), is_last_chunk=True)
                # It has the place when this is answered.
                await anna.ask("model")
                second = await ben.send("audio", data=encoded(capital()), is_last_chunk=True)
                queued = await ben.client.until("queued")
                stop = await ben.send("stop")
                stopped = [*await ben.all_of(second), *await ben.all_of(stop)]
                stop = await anna.send("stop")
                freed = [*await anna.all_of(first), *await anna.all_of(stop)]
                await ben.prefill(user("hello"))
                return queued, stopped, freed, await ben.generate()

    (queued,), stopped, freed, reply = talk(chat())
    assert (queued["session_id"], queued["position"]) == (LABEL, 1)
    for ended in (stopped, freed):
        assert [message["type"] for message in ended] == ["error", "done"]
        assert ended[0]["code"] == "stopped"
    assert response_of(reply)["full_text"] == "You said: hello."


def test_an_llm_that_is_killed_fails_its_requests_and_answers_when_it_is_back(killed: Served) -> None:
    async def chat() -> tuple[list[dict], list[dict], list[dict]]:
        async with conversation(killed) as anna:
            await anna.prefill(user("before"))
            await anna.generate()
            with frozen(killed, "dora-voice-llm"):
                request = {"session_id": LABEL, "messages": [user("lost")], "is_last_chunk": True}
                lost = await anna.send("prefill", request=request)
                waiting = await anna.send("generate", streaming=SILENT)
            failed = [*await anna.all_of(lost), *await anna.all_of(waiting)]
            await anna.prefill(user("after"))
            return failed, await anna.generate(), (await anna.ask("history"))[-1]["messages"]

    failed, reply, history = talk(chat())
    # What came after it waits until the node is back, and finds that what it was about is lost.
    assert [message["code"] for message in failed] == ["unavailable", "nothing_to_answer"]
    assert response_of(reply)["full_text"] == "You said: after."
    assert history[0] == user("before"), "what was said is not forgotten"


def test_a_tts_that_is_killed_fails_what_is_spoken_only(killed: Served) -> None:
    async def chat() -> tuple[list[dict], dict, dict]:
        async with conversation(killed) as anna:
            async with conversation(killed) as ben:
                await anna.prefill(user("hello"))
                await ben.prefill(user("hello"))
                with frozen(killed, "dora-voice-tts"):
                    spoken = await anna.send("generate", streaming={"generate_audio": True})
                    await anna.client.until("chunk")
                failed = await anna.all_of(spoken)
                written = await ben.generate()
            await anna.ask("reset")
            await anna.prefill(user("again"))
            # What is to be spoken waits until the tts is back.
            return failed, response_of(written), response_of(await anna.ask("generate"))

    failed, written, spoken = talk(chat())
    assert failed[-1]["code"] == "unavailable", failed[-1]
    assert written["full_text"] == "You said: hello."
    assert spoken["full_text"] == "You said: again."
    assert spoken["audio_duration_ms"] > 0


def test_an_stt_that_is_killed_fails_what_is_said_and_writes_down_when_it_is_back(killed: Served) -> None:
    async def chat() -> tuple[dict, list[dict]]:
        async with conversation(killed) as anna:
            said = {"data": encoded(capital()), "is_last_chunk": True}
            with frozen(killed, "dora-voice-stt"):
                lost = await anna.send("audio", **said)
            failed = (await anna.all_of(lost))[-1]
            return failed, await anna.ask("audio", **said)

    failed, (transcript, _) = talk(chat())
    assert failed["code"] == "unavailable"
    assert transcript["text"] == "2.2 seconds"
