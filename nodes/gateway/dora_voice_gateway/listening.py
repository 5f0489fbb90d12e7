"""Recordings of clients, written down by the stt node."""

from __future__ import annotations

import asyncio

import numpy as np

from dora_voice.audio import Samples
from dora_voice.messages import SOURCE_RATE_HZ, Audio, Message, Text
from dora_voice_gateway.bridge import Bridge, Lost
from dora_voice_gateway.errors import ClientError
from dora_voice_gateway.presence import CRASHED

LONGEST_PIECE_S, SHORTEST_PIECE_S = 25.0, 15.0
"""The stt node takes 30 s at once. A longer recording is cut at its quietest place between these."""
FRAME_SAMPLES = SOURCE_RATE_HZ // 20
MESSAGE_SAMPLES = SOURCE_RATE_HZ // 20
"""Small: dora warns of large messages."""


async def write_down(bridge: Bridge, samples: Samples, timeout_s: float) -> str:
    """What is said in 16 kHz mono samples; empty if nobody speaks. Raises ClientError if nobody writes it down."""
    if not samples.size:
        return ""
    if not np.isfinite(samples).all():
        # No node takes it, so nobody would answer.
        raise ClientError("bad_request", "sound that is NaN or far too loud: expected samples in [-1, 1]")
    return " ".join([text for piece in pieces(samples) if (text := await _write_down(bridge, piece, timeout_s))])


def pieces(samples: Samples, longest_s: float = LONGEST_PIECE_S, shortest_s: float = SHORTEST_PIECE_S) -> list[Samples]:
    """The samples, cut where it is quiet into pieces that the recogniser takes."""
    longest, shortest = round(longest_s * SOURCE_RATE_HZ), round(shortest_s * SOURCE_RATE_HZ)
    cut: list[Samples] = []
    while len(samples) > longest:
        frames = samples[shortest:longest]
        frames = frames[: len(frames) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
        end = shortest + int(np.argmin(np.square(frames).mean(axis=1))) * FRAME_SAMPLES + FRAME_SAMPLES // 2
        cut.append(samples[:end])
        samples = samples[end:]
    return [*cut, samples]


async def _write_down(bridge: Bridge, samples: Samples, timeout_s: float) -> str:
    await bridge.presence.wait("stt", timeout_s=timeout_s)
    written: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def receive(message: Message | Lost) -> None:
        if written.done() or (isinstance(message, Text) and (message.error or "").startswith(CRASHED)):
            return
        if isinstance(message, Lost):
            if message.port == "recorded":
                written.set_exception(ClientError("unavailable", "the node stt crashed: expected another try"))
        elif isinstance(message, Text) and message.port == "recorded" and message.fin:
            if message.error:
                written.set_exception(ClientError("failed", f"the sound could not be written down: {message.error}"))
            else:
                written.set_result(message.text.strip())

    line = bridge.open("recording", receive)
    try:
        for start in range(0, len(samples), MESSAGE_SAMPLES):
            piece = samples[start : start + MESSAGE_SAMPLES]
            is_last = start + MESSAGE_SAMPLES >= len(samples)
            line.send(Audio, port="recording", segment_id=1, samples=piece, sample_rate=SOURCE_RATE_HZ, fin=is_last)
        return await asyncio.wait_for(written, timeout_s)
    except TimeoutError:
        raise ClientError("timeout", f"the sound was not written down within REQUEST_S={timeout_s:g}") from None
    finally:
        line.close()
