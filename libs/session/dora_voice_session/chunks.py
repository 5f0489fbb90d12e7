"""Counts the chunks of a reply, and the time from one to the next. Pure."""

from __future__ import annotations

from collections.abc import Callable

from dora_voice_session.schema import StreamingChunk


class Chunks:
    """`clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_s = clock()
        self.count = 0

    def next(self, delta: str, *, is_final: bool = False) -> StreamingChunk:
        now_s = self._clock()
        chunk = StreamingChunk(
            chunk_index=self.count, text_delta=delta, is_final=is_final, duration_ms=1000 * (now_s - self._last_s)
        )
        self._last_s, self.count = now_s, self.count + 1
        return chunk
