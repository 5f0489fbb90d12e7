"""What a client of /ws/stream says, while it is said: collected until the utterance has ended."""

from __future__ import annotations

import base64
from collections.abc import Callable

import numpy as np

from dora_voice.audio import EMPTY, RateConverter, Samples
from dora_voice.messages import SOURCE_RATE_HZ, Audio, Control, Message
from dora_voice_gateway import stream_protocol
from dora_voice_gateway.bridge import Bridge, Lost
from dora_voice_gateway.errors import ClientError
from dora_voice_gateway.media import samples_of

KEPT_S = 2
"""Of silence: an utterance begins a little before it is noticed."""


class LiveSpeech:
    """Gives `ended` the samples of each utterance, 16 kHz mono. `longest_s`: of an utterance."""

    def __init__(self, bridge: Bridge, longest_s: float, ended: Callable[[Samples], None]) -> None:
        self._line = bridge.open("listen", self._receive)
        self._longest = round(longest_s * SOURCE_RATE_HZ)
        self._ended = ended
        self._converter = RateConverter(SOURCE_RATE_HZ)
        self._kept = EMPTY
        self._first = 0
        """Position of the first sample that is kept, in the sound of this client."""
        self._begun_at: int | None = None

    def close(self) -> None:
        self._line.close()

    def hear(self, audio: stream_protocol.Audio) -> None:
        """Raises ClientError for sound that can't be read, or an utterance that is too long."""
        samples = samples_of(base64.b64decode(audio.data), audio.format)
        samples = self._converter.process(samples, audio.sample_rate)
        self._kept = np.concatenate([self._kept, samples])
        if len(self._kept) > self._longest:
            self._keep_from(self._end)
            raise ClientError(
                "too_large", f"an utterance of more than AUDIO_S={self._longest / SOURCE_RATE_HZ:g} s: it is forgotten"
            )
        if audio.endpointing:
            self._endpoint(samples)
        if audio.is_last_chunk:
            self._kept = np.concatenate([self._kept, self._converter.flush()])
            begins_at = self._first if self._begun_at is None else self._begun_at
            self._end_at(begins_at, self._end)

    @property
    def _end(self) -> int:
        return self._first + len(self._kept)

    def _endpoint(self, samples: Samples) -> None:
        if self._begun_at is None:
            self._keep_from(max(self._first, self._end - KEPT_S * SOURCE_RATE_HZ))
        self._line.send(
            Audio,
            port="endpoint_audio",
            samples=samples,
            sample_rate=SOURCE_RATE_HZ,
            audio_ms=(self._end - len(samples)) * 1000 // SOURCE_RATE_HZ,
        )

    def _receive(self, message: Message | Lost) -> None:
        """What the endpointing vad finds."""
        if not isinstance(message, Control) or message.audio_ms is None:
            return
        at = message.audio_ms * SOURCE_RATE_HZ // 1000
        if message.verb == "start":
            self._begun_at = at
        elif message.verb == "drop":
            self._begun_at = None
        elif message.verb == "commit" and self._begun_at is not None:
            self._end_at(self._begun_at, at)

    def _end_at(self, begin: int, end: int) -> None:
        utterance = self._kept[max(0, begin - self._first) : max(0, end - self._first)]
        self._keep_from(end)
        self._begun_at = None
        self._ended(utterance)

    def _keep_from(self, position: int) -> None:
        self._kept = self._kept[max(0, position - self._first) :]
        self._first = max(self._first, position)
