"""What a live client is told when a node crashes between a question's words and its commit. No dataflow."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np

from dora_voice.messages import Audio, Control, Text
from dora_voice_gateway.bridge import Bridge
from dora_voice_gateway.config import Config
from dora_voice_gateway.gateway import Gateway
from dora_voice_gateway.voice import Voice


def test_a_turn_whose_tts_crashed_before_the_commit_ends_also_if_the_tts_is_back_by_then() -> None:
    async def story() -> list[Any]:
        bridge = Bridge()
        bridge.begin()
        sent = asyncio.Event()
        bridge.wake = sent.set
        told: list[Any] = []
        voice = Voice(None, Gateway(Config(), bridge), 16_000)  # pyright: ignore[reportArgumentType]
        voice._put = told.append
        named = {"session_id": voice._line.session_id, "segment_id": 1}
        bridge.deliver(Text(port="user_text", text="hello", fin=True, speculative=True, **named))
        bridge.deliver(Text(port="reply_text", text="Hi.", fin=True, speculative=True, **named))
        bridge.lose("reply_audio")
        await sent.wait()
        tried = bridge.take()
        assert tried is not None
        answer = Audio(port="reply_audio", samples=np.zeros(0, np.float32), sample_rate=24_000, fin=True)
        bridge.deliver(dataclasses.replace(answer, session_id=tried.session_id, segment_id=tried.segment_id))
        await bridge.presence.wait("tts", timeout_s=5)
        bridge.deliver(Control(port="control", verb="commit", **named))
        await asyncio.sleep(0)
        return told

    *_, ended, sound = asyncio.run(story())
    assert (ended.type, ended.error) == ("reply", "unavailable: the node tts crashed")
    assert sound[8] == 1, "the last of its sound"
