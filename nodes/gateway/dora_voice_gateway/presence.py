"""Which nodes are away: one that crashed is tried until it answers, because what it is sent before that is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from dora_voice.messages import SOURCE_RATE_HZ, Audio, Control, Message, Text
from dora_voice_gateway.errors import ClientError

if TYPE_CHECKING:
    from dora_voice_gateway.bridge import Bridge, Line, Lost

CRASHED = "restarted:"
"""So begin the errors that a crash leaves behind. Lost comes with them."""
WHO = {"recorded": "stt", "user_text": "stt", "result": "llm", "reply_audio": "tts", "control": "vad"}
"""The node behind an input of the gateway."""
TRY_S = {"stt": 0.5, "llm": 0.5, "tts": 2.0}
"""So long each has to answer the first try, and each time longer. What the tts is to say comes from the llm."""
MOST_PATIENCE = 5


class Presence:
    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._trying: dict[str, asyncio.Task[None]] = {}
        """Of each node that is away."""
        self._gone: set[str] = set()

    def lost(self, port: str, for_good: bool) -> None:
        """Who feeds this input crashed, and may not be started again."""
        who = WHO.get(port)
        if who not in TRY_S:
            return
        if for_good:
            self._gone.add(who)
        if who not in self._trying:
            self._trying[who] = asyncio.create_task(self._until_back(who))

    def away(self, *needed: str) -> str | None:
        """The first of these nodes that isn't there."""
        return next((who for who in needed if who in self._trying), None)

    async def wait(self, *needed: str, timeout_s: float) -> None:
        """Until all of them are there; who waits goes on in order. Raises ClientError if that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                while who := self.away(*needed):
                    if who in self._gone:
                        raise ClientError("unavailable", f"the node {who} crashed, and is not started again")
                    await asyncio.shield(self._trying[who])
        except TimeoutError:
            why = f"the node {self.away(*needed)} crashed, and was not back within REQUEST_S={timeout_s:g}"
            raise ClientError("unavailable", why) from None

    async def _until_back(self, who: str) -> None:
        answered = asyncio.Event()

        def receive(message: Message | Lost) -> None:
            if not isinstance(message, Text | Audio) or WHO.get(message.port) != who:
                return
            if not (message.error or "").startswith(CRASHED):
                answered.set()

        line = self._bridge.open("presence", receive)
        try:
            for segment_id in count(1):
                TRIES[who](line, segment_id)
                try:
                    await asyncio.wait_for(answered.wait(), TRY_S[who] * min(segment_id, MOST_PATIENCE))
                    return
                except TimeoutError:
                    # One try at a time: what was not lost makes work.
                    line.send(Control, port="client_control", verb="flush", segment_id=segment_id + 1, flush=True)
        finally:
            line.close()
            del self._trying[who]


def _try_stt(line: Line, segment_id: int) -> None:
    # Answered at once: there is nothing to recognise.
    nothing = np.zeros(0, np.float32)
    line.send(Audio, port="recording", segment_id=segment_id, samples=nothing, sample_rate=SOURCE_RATE_HZ, fin=True)


def _try_llm(line: Line, segment_id: int) -> None:
    _request(line, segment_id, {"type": "model", "session_id": line.session_id})


def _try_tts(line: Line, segment_id: int) -> None:
    said = {
        "session_id": line.session_id,
        "messages": [{"role": "user", "content": "Hi."}],
        "is_last_chunk": True,
        "generation": {"max_new_tokens": 1},
    }
    _request(line, segment_id, {"type": "complete", "request": said})


def _request(line: Line, segment_id: int, document: dict[str, Any]) -> None:
    document["request_id"] = str(segment_id)
    line.send(Text, port="request", segment_id=segment_id, text=json.dumps(document), fin=True)


TRIES: dict[str, Callable[[Line, int], None]] = {"stt": _try_stt, "llm": _try_llm, "tts": _try_tts}
