"""Recordings on their way to the stt node, which is a list here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from dora_voice.audio import Samples
from dora_voice.messages import SOURCE_RATE_HZ, Audio, Control, Message, Text
from dora_voice_gateway.bridge import Bridge
from dora_voice_gateway.errors import ClientError
from dora_voice_gateway.listening import pieces, write_down

SECOND = SOURCE_RATE_HZ


def noise(seconds: float) -> Samples:
    return np.random.default_rng(1).uniform(-0.5, 0.5, round(seconds * SECOND)).astype(np.float32)


def test_a_short_recording_is_one_piece() -> None:
    samples = noise(25)
    (piece,) = pieces(samples)
    assert piece is samples


def test_a_long_recording_is_cut_where_it_is_quiet_and_nothing_is_lost() -> None:
    samples = noise(60)
    for quiet_s in (20.0, 38.0):
        samples[round(quiet_s * SECOND) : round((quiet_s + 0.2) * SECOND)] = 0
    cut = pieces(samples)
    assert np.array_equal(np.concatenate(cut), samples)
    ends_s = np.cumsum([len(piece) for piece in cut[:-1]]) / SECOND
    assert [20.0 < ends_s[0] < 20.2, 38.0 < ends_s[1] < 38.2] == [True, True]


def test_no_piece_is_longer_than_the_recogniser_takes_however_loud_it_is() -> None:
    cut = pieces(noise(90), longest_s=10, shortest_s=5)
    assert all(len(piece) <= 10 * SECOND for piece in cut)
    assert all(len(piece) >= 5 * SECOND for piece in cut[:-1])


def test_what_each_piece_says_is_joined_in_order() -> None:
    samples = noise(70)
    words = ["one", "", "three", "four", "five"][: len(pieces(samples))]
    said = iter(words)

    def stt(message: Audio, answer: Answer) -> None:
        if message.fin:
            answer(text=next(said), fin=True)

    text, sent = run(lambda bridge: write_down(bridge, samples, 5), stt)
    assert text == " ".join(filter(None, words))
    assert all(len(message.samples) <= SECOND for message in sent)
    assert np.array_equal(np.concatenate([message.samples for message in sent]), samples)
    assert sum(message.fin for message in sent) == len(words)
    assert len({message.session_id for message in sent}) == len(words), "each piece is a session of its own"


def test_an_empty_recording_says_nothing_and_bothers_nobody() -> None:
    text, sent = run(lambda bridge: write_down(bridge, noise(0), 5), lambda message, answer: None)
    assert (text, sent) == ("", [])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_no_node_would_take_is_refused_at_once(value: float) -> None:
    samples = noise(0.5)
    samples[10] = value
    with pytest.raises(ClientError, match="NaN") as raised:
        run(lambda bridge: write_down(bridge, samples, 5), lambda message, answer: None)
    assert raised.value.code == "bad_request"


def test_what_stt_fails_at_is_an_error() -> None:
    def stt(message: Audio, answer: Answer) -> None:
        answer(fin=True, error="ValueError: no")

    with pytest.raises(ClientError, match="ValueError: no") as raised:
        run(lambda bridge: write_down(bridge, noise(0.5), 5), stt)
    assert raised.value.code == "failed"


def test_a_crash_of_stt_is_told_as_such_whatever_comes_with_it() -> None:
    async def listen(bridge: Bridge) -> str:
        def stt(message: Audio, answer: Answer) -> None:
            answer(fin=True, error="restarted: node stt crashed")
            bridge.lose("reply_audio")
            bridge.lose("recorded")

        serve(bridge, stt)
        return await write_down(bridge, noise(0.5), 5)

    with pytest.raises(ClientError) as raised:
        run(listen, lambda message, answer: None)
    assert raised.value.code == "unavailable"


def test_nobody_answering_is_an_error_too_and_the_session_is_ended() -> None:
    async def listen(bridge: Bridge) -> bool:
        with pytest.raises(ClientError) as raised:
            await write_down(bridge, noise(0.5), 0.01)
        assert raised.value.code == "timeout"
        return bridge.open_lines == 0

    ended, _ = run(listen, lambda message, answer: None)
    assert ended


Answer = Callable[..., None]
Stt = Callable[[Audio, Answer], None]


def serve(bridge: Bridge, stt: Stt) -> list[Audio]:
    """From now on `stt` gets each message that is sent, and may answer it."""
    sent: list[Audio] = []

    def take() -> None:
        while (message := bridge.take()) is not None:
            if isinstance(message, Audio):
                sent.append(message)
                stt(message, answering(bridge, message))
            else:
                assert isinstance(message, Control)
                assert message.verb == "end"

    bridge.wake = take
    return sent


def answering(bridge: Bridge, asked: Message) -> Answer:
    def answer(text: str = "", **fields: Any) -> None:
        bridge.deliver(
            Text(port="recorded", session_id=asked.session_id, segment_id=asked.segment_id, text=text, **fields)
        )

    return answer


def run(listen: Callable[[Bridge], Coroutine[Any, Any, Any]], stt: Stt) -> tuple[Any, list[Audio]]:
    async def with_bridge() -> tuple[Any, list[Audio]]:
        bridge = Bridge()
        bridge.begin()
        sent = serve(bridge, stt)
        return await listen(bridge), sent

    return asyncio.run(with_bridge())
