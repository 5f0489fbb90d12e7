"""/ws/voice in the real dataflow, with the real small models in fp32. The client is microphone and loudspeaker."""

from __future__ import annotations

import asyncio
import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from gateway.serving import FAKES, PATIENCE_S, ROOT, SERVER, Served, serving, talk
from listening import transcribed, word_errors
from websockets.asyncio.client import connect

from dora_voice.audio import resample
from dora_voice_llm.past import Past, is_end

RECORDINGS = ROOT / "tests/recordings"
FIN, SPECULATIVE = 1, 2
GUESSED_S, ANSWERED_S = 2.3, 8.0
"""In three-questions: the first question is being said; the second has not begun."""


class Voice:
    """Plays what it is sent at once, as a loudspeaker does that is not waited for; or, with `holds`, not at all."""

    def __init__(self, served: Served, **begin: Any) -> None:
        self._connecting = connect(served.url("/ws/voice"), max_size=None)
        self._begin = {"type": "begin", **begin}
        self.rate_hz = begin.get("sample_rate", 16_000)
        self.messages: list[dict[str, Any]] = []
        """All that came as JSON."""
        self.sound: dict[int, list[tuple[int, int, np.ndarray]]] = defaultdict(list)
        """By segment: flags, end of the text, samples."""
        self.holds = False
        self.session_id = ""

    async def __aenter__(self) -> Voice:
        self.socket = await self._connecting
        await self.send(**self._begin)
        self.session_id = (await self.until("ready"))["session_id"]
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.socket.close()

    async def send(self, **document: Any) -> None:
        await self.socket.send(json.dumps(document))

    async def say(self, name: str, begin_s: float = 0.0, end_s: float | None = None, frame_s: float = 0.0) -> None:
        """Part of a recording. All at once, with `frame_s` 0: the vad counts samples, not seconds."""
        samples, rate = soundfile.read(RECORDINGS / f"{name}.wav", dtype="float32")
        part = samples[round(begin_s * rate) : None if end_s is None else round(end_s * rate)]
        data = resample(part, rate, self.rate_hz).astype("<f4")
        for at in range(0, len(data), self.rate_hz // 50):
            await self.socket.send(data[at : at + self.rate_hz // 50].tobytes())
            await asyncio.sleep(frame_s)

    async def until(self, kind: str, **values: Any) -> dict[str, Any]:
        """Takes what comes up to a message with these values. An error that isn't waited for fails the test."""
        while True:
            message = await self.receive()
            if message and message["type"] == kind and values.items() <= message.items():
                return message
            assert not message or message["type"] != "error", message

    async def receive(self) -> dict[str, Any]:
        """Empty: it was sound."""
        data = await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
        if isinstance(data, bytes):
            await self._hear(data)
            return {}
        SERVER["/ws/voice"].validate_json(data)
        self.messages.append(json.loads(data))
        return self.messages[-1]

    async def heard_whole(self, segment_id: int) -> None:
        while not (self.sound[segment_id] and self.sound[segment_id][-1][0] & FIN):
            await self.receive()

    async def heard(self, segment_id: int, samples: int) -> None:
        """So much of it has been sent, and is reported."""
        while self.samples(segment_id).size < samples:
            await self.receive()
        await self.played(segment_id)

    async def played(self, segment_id: int, *, fin: bool = False) -> None:
        await self.send(type="played", segment_id=segment_id, samples=self.samples(segment_id).size, fin=fin)

    async def ask(self, text: str, speak: bool = True) -> int:
        """Typed words. Returns the segment."""
        await self.send(type="text", text=text, speak=speak)
        return (await self.until("transcript", text=text))["segment_id"]

    async def answer(self, text: str) -> str:
        """To typed words, unspoken."""
        segment_id = await self.ask(text, speak=False)
        await self.until("reply", segment_id=segment_id, fin=True)
        return self.reply(segment_id)

    def of(self, kind: str, **values: Any) -> list[dict[str, Any]]:
        return [each for each in self.messages if each["type"] == kind and values.items() <= each.items()]

    def index(self, kind: str, **values: Any) -> int:
        return self.messages.index(self.of(kind, **values)[0])

    def reply(self, segment_id: int) -> str:
        return "".join(each["text_delta"] for each in self.of("reply", segment_id=segment_id))

    def samples(self, segment_id: int) -> np.ndarray:
        return np.concatenate([np.zeros(0, "<f4"), *(samples for _, _, samples in self.sound[segment_id])])

    async def _hear(self, data: bytes) -> None:
        segment_id, flags, text_end = struct.unpack("<QII", data[:16])
        self.sound[segment_id].append((flags, text_end, np.frombuffer(data[16:], "<f4")))
        if not self.holds and not flags & SPECULATIVE:
            await self.played(segment_id, fin=bool(flags & FIN))


def remembered(served: Served, session_id: str) -> list[tuple[str, str | None]]:
    """What the llm knows of a conversation, from its journal: what was said, and of the reply what was heard."""
    (journal,) = (served.log.parent / "history").glob("*.jsonl")
    past = Past()
    for line in journal.read_text().splitlines():
        entry = json.loads(line)
        if entry["session"] == session_id and not is_end(entry):
            past.apply(entry)
    return [(turn.messages[-1].text, turn.reply) for turn in past.turns]


def spoken_words(samples: np.ndarray, folder: Path) -> str:
    soundfile.write(folder / "heard.wav", samples, 24_000)
    return transcribed(folder / "heard.wav")


@pytest.mark.parametrize("rate_hz", [8_000, 44_100])
def test_a_spoken_question_is_heard_answered_and_remembered(real: Served, rate_hz: int, tmp_path: Path) -> None:
    async def converse() -> Voice:
        async with Voice(real, sample_rate=rate_hz) as voice:
            await voice.say("three-questions", end_s=GUESSED_S)
            await voice.until("hypothesis")
            await voice.say("three-questions", begin_s=GUESSED_S, end_s=ANSWERED_S)
            await voice.until("commit")
            await voice.until("reply", fin=True)
            await voice.heard_whole(1)
            await voice.answer("Thanks.")
            voice.memory = remembered(real, voice.session_id)
            await voice.send(type="end")
            await voice.until("ended")
            await asyncio.wait_for(voice.socket.wait_closed(), PATIENCE_S)
            return voice

    voice = talk(converse())
    assert voice.socket.close_code == 1000
    order = [voice.index(kind, segment_id=1) for kind in ("speech_started", "hypothesis", "transcript", "reply")]
    assert order == sorted(order)
    assert len(voice.of("commit", segment_id=1)) == len(voice.of("timing", segment_id=1)) == 1
    transcript = voice.of("transcript", segment_id=1)[0]["text"]
    assert "capital of France" in transcript
    reply = voice.reply(1)
    assert "Paris" in reply
    errors, words = word_errors(reply, spoken_words(voice.samples(1), tmp_path))
    assert errors <= max(2, words // 5)
    ends = [text_end for _, text_end, _ in voice.sound[1]]
    assert ends == sorted(ends)
    assert ends[-1] == len(reply)
    assert [bool(flags & FIN) for flags, _, _ in voice.sound[1]].count(True) == 1
    assert voice.memory[0] == (transcript, reply)


def test_a_conversation_has_the_settings_it_began_with(real: Served) -> None:
    settings = {"system_prompt": "You are a pirate.", "language": "en", "generation": {"max_new_tokens": 3}}

    async def converse() -> tuple[str, str]:
        async with Voice(real, settings=settings) as voice:
            short = await voice.answer("Tell me a long story.")
        async with Voice(real, settings={"generation": {"max_new_tokens": 12}}) as voice:
            return short, await voice.answer("Tell me a long story.")

    short, longer = talk(converse())
    assert 0 < len(short.split()) <= 3
    assert len(longer.split()) > 3
    assert not longer.startswith(short)


def test_a_setting_that_nobody_can_honour_is_refused_and_the_conversation_goes_on(real: Served) -> None:
    async def converse() -> tuple[dict[str, Any], str]:
        voice = Voice(real)
        async with connect(real.url("/ws/voice")) as voice.socket:
            await voice.send(type="begin", settings={"voice": "somebody"})
            failed = await voice.until("error")
            await voice.until("ready")
            return failed, await voice.answer("What is the capital of France?")

    failed, reply = talk(converse())
    assert failed["code"] == "unsupported_field"
    assert "voice" in failed["error"]
    assert "Paris" in reply


def test_a_half_sentence_is_dropped_and_its_rest_continues_it(real: Served) -> None:
    async def converse() -> Voice:
        async with Voice(real) as voice:
            await voice.say("hesitation")
            await voice.until("drop")
            await voice.until("commit")
            await voice.until("reply", fin=True)
            dropped = voice.of("drop")[0]["segment_id"]
            # As a loudspeaker does that has thrown away what it held.
            if voice.sound[dropped]:
                await voice.send(type="played", segment_id=dropped, samples=0, fin=True)
            voice.memory = [await voice.answer("Thanks."), *remembered(real, voice.session_id)]
            return voice

    voice = talk(converse())
    dropped = voice.of("drop")[0]["segment_id"]
    rest = voice.of("speech_started", continues=dropped)[0]["segment_id"]
    committed = voice.of("commit")[0]["segment_id"]
    assert committed == rest > dropped
    assert all(flags & SPECULATIVE for flags, _, _ in voice.sound[dropped])
    said = voice.of("transcript", segment_id=rest)[0]["text"]
    assert word_errors("I would like to know what color the sky is.", said)[0] <= 2
    assert voice.memory[1][0] == said


def test_a_hum_pauses_the_reply_which_then_goes_on(real: Served, tmp_path: Path) -> None:
    async def converse() -> Voice:
        async with Voice(real, settings={"generation": {"max_new_tokens": 40}}) as voice:
            voice.holds = True
            await voice.say("backchannel", end_s=8.0)
            await voice.until("commit")
            await voice.heard(1, 12_000)
            # As it is spoken: what it means has to be known before it has been silent for long.
            speaking = asyncio.create_task(voice.say("backchannel", begin_s=8.0, end_s=13.0, frame_s=0.02))
            await voice.until("pause", segment_id=1)
            await voice.until("resume", segment_id=1)
            await speaking
            voice.holds = False
            await voice.played(1)
            await voice.heard_whole(1)
            return voice

    voice = talk(converse())
    assert voice.of("flush") == []
    hum = voice.of("drop")[0]["segment_id"]
    assert voice.of("speech_started", segment_id=hum)
    reply = voice.reply(1)
    errors, words = word_errors(reply, spoken_words(voice.samples(1), tmp_path))
    assert errors <= max(2, words // 5), reply


def test_a_hum_by_itself_is_no_question_and_is_not_remembered(real: Served) -> None:
    async def converse() -> Voice:
        async with Voice(real) as voice:
            await voice.say("backchannel", begin_s=8.0)
            await voice.until("transcript")
            await voice.heard_whole(1)
            assert "Paris" in await voice.answer("What is the capital of France?")
            await voice.answer("Thanks.")
            voice.memory = remembered(real, voice.session_id)
            return voice

    voice = talk(converse())
    rejected = voice.of("transcript")[0]
    assert rejected["text"] == ""
    assert rejected["rejected"]
    assert voice.reply(1) == ""
    assert voice.samples(1).size == 0
    assert not voice.of("timing", segment_id=1)
    assert voice.memory[0][0] == "What is the capital of France?"


def test_who_interrupts_hears_nothing_old_and_the_llm_remembers_what_was_heard(real: Served) -> None:
    async def converse() -> Voice:
        async with Voice(real) as voice:
            voice.holds = True
            await voice.say("barge-in", end_s=9.0)
            await voice.until("commit")
            await voice.heard(1, 24_000)
            heard = voice.samples(1).size
            await voice.say("barge-in", begin_s=9.0)
            flushed = await voice.until("flush")
            await voice.send(type="played", segment_id=1, samples=heard, fin=True)
            ends = np.cumsum([samples.size for _, _, samples in voice.sound[1]])
            voice.heard_end = max(
                end for (_, end, _), at in zip(voice.sound[1], ends.tolist(), strict=True) if at <= heard
            )
            before = len(voice.sound[1])
            voice.holds = False
            await voice.until("commit", segment_id=flushed["segment_id"])
            await voice.heard_whole(flushed["segment_id"])
            voice.late = len(voice.sound[1]) - before
            await voice.answer("Thanks.")
            voice.memory = remembered(real, voice.session_id)
            return voice

    voice = talk(converse())
    assert voice.index("pause", segment_id=1) < voice.index("flush")
    assert voice.late == 0
    heard = voice.reply(1)[: voice.heard_end]
    assert 0 < len(heard) < len(voice.reply(1))
    (asked, kept), (stop, answered), *_ = voice.memory
    assert "story" in asked
    assert kept
    assert heard.startswith(kept)
    assert len(heard.split()) - len(kept.split()) <= 1, "whole words"
    assert "Italy" in stop
    assert answered == voice.reply(voice.of("flush")[0]["segment_id"])


def test_typed_words_come_in_between_spoken_or_not(real: Served, tmp_path: Path) -> None:
    async def converse() -> Voice:
        async with Voice(real) as voice:
            first = await voice.ask("Tell me a very long story about a dragon.")
            voice.holds = True
            await voice.heard(first, 12_000)
            second = await voice.ask("What is the capital of France?", speak=False)
            assert voice.of("flush", segment_id=second)
            await voice.played(first, fin=True)
            await voice.until("reply", segment_id=second, fin=True)
            voice.holds = False
            third = await voice.ask("What color is the sky?")
            await voice.heard_whole(third)
            while not voice.of("reply", segment_id=third, fin=True):
                await voice.receive()
            await voice.say("three-questions", end_s=ANSWERED_S)
            spoken = (await voice.until("commit"))["segment_id"]
            await voice.heard_whole(spoken)
            voice.segments = first, second, third, spoken
            await voice.answer("Thanks.")
            voice.memory = remembered(real, voice.session_id)
            return voice

    voice = talk(converse())
    first, second, third, spoken = voice.segments
    assert first < second < third < spoken
    assert not voice.sound[second]
    assert "Paris" in voice.reply(second)
    assert voice.memory[1] == ("What is the capital of France?", voice.reply(second))
    story = voice.memory[0][1]
    assert story
    assert voice.reply(first).startswith(story)
    assert len(story) < len(voice.reply(first))
    errors, words = word_errors(voice.reply(third), spoken_words(voice.samples(third), tmp_path))
    assert errors <= max(2, words // 5)
    assert voice.memory[2][1] == voice.reply(third)
    assert "France" in voice.memory[3][0]
    assert len(voice.of("timing", segment_id=third)) == 1
    assert not voice.of("timing", segment_id=second)


def test_stop_ends_the_reply_and_the_next_words_are_answered(real: Served) -> None:
    async def converse() -> Voice:
        async with Voice(real) as voice:
            voice.holds = True
            story = await voice.ask("Tell me a very long story about a dragon.")
            await voice.heard(story, 12_000)
            await voice.send(type="stop")
            flushed = (await voice.until("flush", segment_id=story + 2))["segment_id"]
            await voice.played(story, fin=True)
            before = len(voice.sound[story])
            await voice.send(type="stop")
            await voice.until("flush", segment_id=flushed + 2)
            reply = await voice.answer("What is the capital of France?")
            assert "Paris" in reply
            assert len(voice.sound[story]) == before
            assert not voice.of("reply", segment_id=story, fin=True)
            return voice

    talk(converse())


def test_a_report_of_what_was_never_sent_is_refused_and_changes_nothing(real: Served) -> None:
    wrong = [
        {"segment_id": 99, "samples": 0},
        {"segment_id": -1, "samples": 0},
        {"segment_id": 2**62, "samples": 0},
        {"segment_id": "1", "samples": 0},
        {"segment_id": 2, "samples": -1},
        {"segment_id": 2, "samples": 2.5},
        {"segment_id": 2, "samples": 10**30},
        {"segment_id": 2},
        {"samples": 1},
        {"segment_id": 2, "samples": 0, "fin": "yes"},
        {"segment_id": 2, "samples": 0, "text_end": 3},
    ]

    async def converse() -> Voice:
        async with Voice(real) as voice:
            voice.holds = True
            segment_id = await voice.ask("What is the capital of France?")
            assert segment_id == 2
            await voice.heard(segment_id, 12_000)
            sent = voice.samples(segment_id).size
            for report in [*wrong, {"segment_id": 2, "samples": sent + 10**6}]:
                await voice.send(type="played", **report)
                failed = await voice.until("error")
                assert failed["code"] == "bad_request", failed
                assert any(each in failed["error"] for each in ("segment_id", "samples", "fin", "text_end")), failed
            voice.holds = False
            await voice.played(segment_id)
            await voice.heard_whole(segment_id)
            # Once it has ended, nobody can make it longer, or hear less.
            await voice.send(type="played", segment_id=segment_id, samples=0, fin=True)
            await voice.answer("Thanks.")
            assert remembered(real, voice.session_id)[0][1] == voice.reply(segment_id)
            return voice

    talk(converse())


def test_errors_come_in_any_order_and_the_conversation_goes_on(real: Served) -> None:
    before: list[Any] = [
        b"\0\0\0\0",
        "{",
        {"type": "text", "text": "Hello."},
        {"type": "end"},
        {"type": "begin", "sample_rate": 7_999},
        {"type": "begin", "sample_rate": "16000"},
        {"type": "begin", "settings": {"system_prompt": 3}},
        {"type": "begin", "voices": 2},
    ]
    during: list[Any] = [
        {"type": "begin"},
        b"\0\0\0",
        struct.pack("<f", float("nan")),
        {"type": "text", "text": ""},
        {"type": "text"},
        {"type": "text", "text": "Hello.", "speak": "yes"},
        {"type": "ready", "session_id": "mine"},
        {"type": "stop", "now": True},
        [],
        "null",
    ]

    async def refused(voice: Voice, what: Any) -> None:
        await voice.socket.send(what if isinstance(what, str | bytes) else json.dumps(what))
        failed = await voice.until("error")
        assert failed["code"] == "bad_request", (what, failed)

    async def converse() -> str:
        voice = Voice(real)
        async with connect(real.url("/ws/voice")) as voice.socket:
            for what in before:
                await refused(voice, what)
            await voice.send(type="begin")
            await voice.until("ready")
            for what in during:
                await refused(voice, what)
            return await voice.answer("What is the capital of France?")

    assert "Paris" in talk(converse())


def test_words_that_are_too_many_fail_once_and_the_next_are_answered(real: Served) -> None:
    async def converse() -> Voice:
        async with Voice(real) as voice:
            segment_id = await voice.ask("word " * 30_000)
            await voice.until("reply", segment_id=segment_id, fin=True)
            await voice.heard_whole(segment_id)
            assert "Paris" in await voice.answer("What is the capital of France?")
            voice.failed = segment_id
            return voice

    voice = talk(converse())
    (failed,) = voice.of("reply", segment_id=voice.failed)
    assert failed["error"].startswith("context_full: ")
    assert voice.samples(voice.failed).size == 0


def test_sound_that_comes_much_too_fast_is_dropped_and_told_once(real: Served) -> None:
    async def converse() -> Voice:
        async with Voice(real, sample_rate=8_000) as voice:
            second = np.zeros(8_000, "<f4").tobytes()
            for _ in range(120):
                await voice.socket.send(second)
            assert (await voice.until("error"))["code"] == "rate_limited"
            assert "Paris" in await voice.answer("What is the capital of France?")
            return voice

    assert len(talk(converse()).of("error")) == 1


def test_one_client_vanishes_in_mid_reply_and_another_is_not_disturbed(real: Served) -> None:
    def sessions() -> float:
        metrics = real.get("/metrics")[1]
        return float(next(line for line in metrics.splitlines() if line.startswith("dora_voice_sessions ")).split()[1])

    async def converse() -> tuple[str, str, float]:
        async with Voice(real) as stays:
            async with Voice(real) as vanishes:
                vanishes.holds = True
                story = await vanishes.ask("Tell me a very long story about a dragon.")
                await vanishes.heard(story, 12_000)
                segment_id = await stays.ask("What is the capital of France?")
                vanishes.socket.transport.abort()
            await stays.heard_whole(segment_id)
            while not stays.of("reply", segment_id=segment_id, fin=True):
                await stays.receive()
            again = await stays.answer("And of Italy?")
            return stays.reply(segment_id), again, await asyncio.to_thread(sessions)

    reply, again, left = talk(converse())
    assert "Paris" in reply
    assert again
    assert left == 1
    assert sessions() == 0


@pytest.fixture(scope="module")
def one_voice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("voice"), **FAKES, VOICES="1") as served:
        yield served


def test_who_finds_no_place_is_told_the_position_and_gets_the_next(one_voice: Served) -> None:
    async def converse() -> list[dict[str, Any]]:
        async with Voice(one_voice) as first:
            second = Voice(one_voice)
            async with connect(one_voice.url("/ws/voice")) as second.socket:
                await second.send(type="begin")
                queued = await second.until("queued")
                await first.send(type="end")
                await first.until("ended")
                await second.until("ready")
                assert await second.answer("Hello.") == "You said: Hello."
                return [queued]

    assert talk(converse())[0]["position"] == 1
