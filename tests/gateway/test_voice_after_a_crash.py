"""/ws/voice while nodes are killed and come back: every turn ends, the conversation goes on. The models are fakes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gateway.serving import FAKES, Client, Served, frozen, serving, talk, user
from gateway.test_voice_over_dora import GUESSED_S, Voice


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("killed"), **FAKES, REQUEST_S="60") as served:
        yield served


class Patient(Voice):
    """Doesn't mind errors."""

    async def until(self, kind: str, **values: object) -> dict:
        while True:
            message = await self.receive()
            if message and message["type"] == kind and values.items() <= message.items():
                return message


async def back(served: Served, *, speaks: bool) -> None:
    """A request of another client waits until the nodes that it needs are there."""
    async with Client(served, "/ws/chat") as client:
        await client.send({"messages": [user("there?")], "tts": {"enabled": speaks}})
        await client.until("done")


async def failed(anna: Voice, segment_id: int) -> str:
    """Text and sound have ended, and why."""
    await anna.heard_whole(segment_id)
    replies = anna.of("reply", segment_id=segment_id)
    assert [each["fin"] for each in replies].count(True) == 1
    (error,) = [each["error"] for each in replies if each.get("error")]
    return error


def test_words_that_were_being_said_when_the_vad_was_killed_never_happened(killed: Served) -> None:
    async def chat() -> Voice:
        async with Patient(killed) as anna:
            await anna.say("three-questions", 0, 1.5)
            begun = (await anna.until("speech_started"))["segment_id"]
            with frozen(killed, "dora-voice-vad"):
                pass
            await anna.until("drop", segment_id=begun)
            again = await anna.ask("again")
            await anna.until("reply", segment_id=again, fin=True)
            assert anna.reply(again) == "You said: again."
            assert not anna.of("commit", segment_id=begun)
            return anna

    talk(chat())


@pytest.mark.parametrize("who", ["llm", "tts"])
def test_typed_words_end_when_the_node_is_killed_or_away_and_are_answered_when_it_is_back(
    killed: Served, who: str
) -> None:
    async def chat() -> tuple[list[str], str]:
        async with Patient(killed) as anna:
            with frozen(killed, f"dora-voice-{who}"):
                running = await anna.ask("hello")
                if who == "tts":
                    await anna.until("reply", segment_id=running, fin=True)
            errors = [await failed(anna, running), await failed(anna, await anna.ask("are you there?"))]
            await back(killed, speaks=True)
            again = await anna.ask("again")
            await anna.until("reply", segment_id=again, fin=True)
            await anna.heard_whole(again)
            assert anna.samples(again).size
            return errors, anna.reply(again)

    errors, reply = talk(chat())
    assert errors == [f"unavailable: the node {who} crashed"] * 2
    # What was said before may be answered, too: nothing of a reply to it was heard.
    assert reply.endswith(" again.")


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_question_that_nobody_writes_down_ends_once(killed: Served, is_asked: bool) -> None:
    async def chat() -> tuple[str, str]:
        async with Patient(killed) as anna:
            await back(killed, speaks=True)
            with frozen(killed, "dora-voice-stt"):
                await anna.say("three-questions", 0, GUESSED_S)
                lost = (await anna.until("speech_started"))["segment_id"]
                if is_asked:
                    await anna.say("silence", 0, 3)
                    await anna.until("commit", segment_id=lost)
            if not is_asked:
                await anna.say("silence", 0, 3)
            await failed(anna, lost)
            again = await anna.ask("again")
            await anna.until("reply", segment_id=again, fin=True)
            (ended,) = anna.of("reply", segment_id=lost)
            return ended["error"], anna.reply(again)

    error, reply = talk(chat())
    assert error.startswith("unavailable: the node stt crashed")
    assert reply == "You said: again."
