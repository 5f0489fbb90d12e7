"""What is said live, and the vad that finds its ends, which is a list of what it hears here."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dora_voice.audio import Samples, to_int16
from dora_voice.messages import Audio, Control, Message
from dora_voice_gateway import stream_protocol
from dora_voice_gateway.admission import Rate
from dora_voice_gateway.bridge import Bridge
from dora_voice_gateway.errors import ClientError
from dora_voice_gateway.live_speech import LiveSpeech

RATE = 16_000
LONGEST_S = 4.0
STEP = 2.0**-20
"""Exact in float32."""


class Speaker:
    """A client that says numbers: sample n of its sound is n × STEP, so that every cut can be seen."""

    def __init__(self) -> None:
        self.bridge = Bridge()
        self.now_s = 0.0
        self.utterances: list[Samples] = []
        self.speech = LiveSpeech(self.bridge, LONGEST_S, Rate(60, lambda: self.now_s), self.utterances.append)
        self._said = 0

    def say(self, seconds: float, **fields: Any) -> None:
        samples = np.arange(self._said, self._said + round(seconds * RATE), dtype="<f4") * np.float32(STEP)
        self._said += len(samples)
        self.hear(samples.tobytes(), **fields)

    def hear(self, data: bytes, **fields: Any) -> None:
        piece = {"type": "audio", "session_id": "anna", "data": base64.b64encode(data).decode(), **fields}
        self.speech.hear(stream_protocol.Audio.model_validate(piece))

    def heard_by_vad(self) -> list[Message]:
        """Since the last call."""
        heard = []
        while (message := self.bridge.take()) is not None:
            heard.append(message)
        return heard

    async def vad(self, session_id: str | None, verb: str, at_s: float | None) -> None:
        """It finds something in the sound of a session."""
        audio_ms = None if at_s is None else round(at_s * 1000)
        fields: dict[str, Any] = {"verb": verb, "audio_ms": audio_ms, "segment_id": 1}
        self.bridge.deliver(Control(port="endpoint", session_id=session_id, **fields))
        await asyncio.sleep(0)

    def spans_s(self) -> list[tuple[float, float]]:
        return [(float(each[0]) / STEP / RATE, (float(each[-1]) / STEP + 1) / RATE) for each in self.utterances]


@pytest.fixture
def anna() -> Speaker:
    return Speaker()


def test_pieces_add_up_to_an_utterance_at_the_last_chunk_and_the_next_begins_after_it(anna: Speaker) -> None:
    anna.say(0.5)
    anna.say(0.25)
    assert anna.utterances == []
    anna.say(0.25, is_last_chunk=True)
    anna.say(1, is_last_chunk=True)
    assert anna.spans_s() == [(0, 1), (1, 2)]
    assert anna.heard_by_vad() == [], "nobody asked for it"


def test_an_utterance_may_be_empty(anna: Speaker) -> None:
    anna.say(0, is_last_chunk=True)
    assert [len(each) for each in anna.utterances] == [0]


@pytest.mark.parametrize(("rate", "kind"), [(8_000, "f32le"), (44_100, "s16le"), (48_000, "f32le")])
def test_any_rate_and_format_becomes_16_khz_however_it_is_cut(anna: Speaker, rate: int, kind: str) -> None:
    tone = (0.5 * np.sin(2 * np.pi * 440 / rate * np.arange(rate))).astype("<f4")
    sound = to_int16(tone) if kind == "s16le" else tone
    *pieces, last = np.array_split(sound, 7)
    for piece in pieces:
        anna.hear(piece.tobytes(), sample_rate=rate, format=kind)
    anna.hear(last.tobytes(), sample_rate=rate, format=kind, is_last_chunk=True)
    (utterance,) = anna.utterances
    assert abs(len(utterance) - RATE) <= 1
    inner = slice(RATE // 10, RATE * 9 // 10)
    assert np.allclose(
        utterance[inner], 0.5 * np.sin(2 * np.pi * 440 / RATE * np.arange(len(utterance)))[inner], atol=0.01
    )


def test_what_is_far_too_loud_stays_finite_at_any_rate(anna: Speaker) -> None:
    loud = np.tile(np.array([3.4e38, -3.4e38], "<f4"), 4_000)
    anna.hear(loud.tobytes(), sample_rate=8_000, is_last_chunk=True)
    assert np.isfinite(anna.utterances[0]).all()


def test_the_vad_says_where_an_utterance_begins_and_ends(anna: Speaker) -> None:
    async def story() -> None:
        anna.say(1, endpointing=True)
        anna.say(1, endpointing=True)
        first, second = anna.heard_by_vad()
        assert isinstance(first, Audio)
        assert isinstance(second, Audio)
        assert (first.audio_ms, second.audio_ms) == (0, 1000)
        await anna.vad(first.session_id, "start", 0.5)
        anna.say(1, endpointing=True)
        await anna.vad(first.session_id, "commit", 2.25)
        await anna.vad(first.session_id, "start", 2.5)
        anna.say(0.5, endpointing=True)
        await anna.vad(first.session_id, "commit", 3.5)

    listen(anna, story)
    assert anna.spans_s() == [(0.5, 2.25), (2.5, 3.5)]


def test_a_false_alarm_is_no_utterance(anna: Speaker) -> None:
    async def story() -> None:
        anna.say(1, endpointing=True)
        session_id = anna.heard_by_vad()[0].session_id
        await anna.vad(session_id, "start", 0.5)
        await anna.vad(session_id, "drop", 0.7)
        await anna.vad(session_id, "commit", 0.9)

    listen(anna, story)
    assert anna.utterances == []


def test_what_the_vad_comes_to_late_was_kept(anna: Speaker) -> None:
    async def story() -> None:
        anna.say(3.5, endpointing=True)
        session_id = anna.heard_by_vad()[0].session_id
        await anna.vad(session_id, "start", 0.25)
        await anna.vad(session_id, "commit", 3)

    listen(anna, story)
    assert anna.spans_s() == [(0.25, 3)]


def test_silence_does_not_grow_and_is_never_too_long(anna: Speaker) -> None:
    async def story() -> None:
        for _ in range(10):
            anna.now_s += 1
            anna.say(1, endpointing=True)
        anna.say(0, endpointing=True, is_last_chunk=True)

    listen(anna, story)
    assert anna.spans_s() == [(10 - LONGEST_S, 10)]


def test_a_client_may_say_itself_where_it_ends_and_what_the_vad_still_finds_of_it_is_late(anna: Speaker) -> None:
    async def story() -> None:
        anna.say(1, endpointing=True)
        session_id = anna.heard_by_vad()[0].session_id
        await anna.vad(session_id, "start", 0.5)
        anna.say(1, endpointing=True, is_last_chunk=True)
        anna.say(1, endpointing=True)
        await anna.vad(session_id, "commit", 2.5)
        *_, ended, afresh = anna.heard_by_vad()
        assert isinstance(ended, Control)
        assert (ended.verb, ended.session_id) == ("end", session_id)
        assert isinstance(afresh, Audio)
        assert afresh.session_id != session_id
        assert afresh.audio_ms == 2000

    listen(anna, story)
    assert anna.spans_s() == [(0.5, 2)]


def test_the_vad_counts_afresh_after_sound_that_it_did_not_hear(anna: Speaker) -> None:
    async def story() -> None:
        anna.say(1, endpointing=True)
        first = anna.heard_by_vad()[0].session_id
        anna.say(1)
        anna.say(1, endpointing=True)
        *_, afresh = anna.heard_by_vad()
        assert afresh.session_id != first
        await anna.vad(afresh.session_id, "start", 2.25)
        await anna.vad(afresh.session_id, "commit", 2.75)

    listen(anna, story)
    assert anna.spans_s() == [(2.25, 2.75)]


def test_when_the_vad_crashes_what_was_begun_is_taken_as_it_is(anna: Speaker) -> None:
    async def story() -> None:
        anna.say(1, endpointing=True)
        session_id = anna.heard_by_vad()[0].session_id
        await anna.vad(session_id, "start", 0.5)
        await anna.vad(session_id, "commit", None)
        anna.bridge.lose("recorded")
        await asyncio.sleep(0)
        assert anna.utterances == []
        anna.bridge.lose("endpoint")
        await asyncio.sleep(0)

    listen(anna, story)
    assert anna.spans_s() == [(0.5, 1)]


@pytest.mark.parametrize(
    ("data", "kind", "code", "named"),
    [
        (bytes(5), "f32le", "bad_request", "5 bytes"),
        (bytes(3), "s16le", "bad_request", "3 bytes"),
        (np.array([0, np.nan], "<f4").tobytes(), "f32le", "bad_request", "NaN"),
        (bytes(4 * round((LONGEST_S + 1) * RATE)), "f32le", "too_large", "AUDIO_S=4 s"),
    ],
)
def test_what_cannot_be_read_ends_its_utterance_and_nothing_else(
    anna: Speaker, data: bytes, kind: str, code: str, named: str
) -> None:
    anna.say(0.5)
    with pytest.raises(ClientError, match=named) as raised:
        anna.hear(data, format=kind)
    assert raised.value.code == code
    anna.say(0.5)
    anna.say(0.5, is_last_chunk=True)
    assert anna.utterances == [], "the rest of that utterance"
    anna.say(0.5, is_last_chunk=True)
    assert anna.spans_s() == [(1.5, 2)]


def test_a_bad_last_chunk_does_not_take_the_next_utterance_with_it(anna: Speaker) -> None:
    anna.say(0.5)
    with pytest.raises(ClientError):
        anna.hear(bytes(5), is_last_chunk=True)
    anna.say(0.5, is_last_chunk=True)
    assert anna.spans_s() == [(0.5, 1)]


def test_an_utterance_that_goes_on_for_too_long_is_forgotten(anna: Speaker) -> None:
    anna.say(2)
    anna.say(2)
    with pytest.raises(ClientError) as raised:
        anna.say(0.5)
    assert raised.value.code == "too_large"


def test_so_is_one_of_which_the_vad_finds_no_end(anna: Speaker) -> None:
    async def story() -> None:
        anna.say(2, endpointing=True)
        session_id = anna.heard_by_vad()[0].session_id
        await anna.vad(session_id, "start", 1)
        anna.say(2, endpointing=True)
        with pytest.raises(ClientError) as raised:
            anna.say(2, endpointing=True)
        assert raised.value.code == "too_large"
        await anna.vad(session_id, "commit", 6)
        anna.say(1, endpointing=True)
        *_, afresh = anna.heard_by_vad()
        await anna.vad(afresh.session_id, "start", 6.5)
        await anna.vad(afresh.session_id, "commit", 7)

    listen(anna, story)
    assert anna.spans_s() == [(6.5, 7)]


def test_sound_that_comes_faster_than_anybody_speaks_is_refused(anna: Speaker) -> None:
    for _ in range(15):
        anna.say(4, is_last_chunk=True)
    with pytest.raises(ClientError) as raised:
        anna.say(1, is_last_chunk=True)
    assert raised.value.code == "rate_limited"
    anna.now_s += 1
    anna.say(1, is_last_chunk=True)
    assert len(anna.utterances) == 16


def test_a_client_that_goes_away_leaves_no_session_behind(anna: Speaker) -> None:
    async def story() -> None:
        anna.say(1, endpointing=True)
        assert anna.bridge.open_lines == 1
        anna.speech.close()
        assert anna.bridge.open_lines == 0

    listen(anna, story)


def listen(anna: Speaker, story: Callable[[], Any]) -> None:
    async def in_loop() -> None:
        anna.bridge.begin()
        await story()

    asyncio.run(in_loop())
