"""What a client of /ws/stream says, while it is said: collected until the utterance has ended."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from dora_voice.audio import RateConverter, Samples
from dora_voice.messages import SOURCE_RATE_HZ, Audio, Control, Message
from dora_voice_gateway import stream_protocol
from dora_voice_gateway.admission import Rate
from dora_voice_gateway.bridge import Bridge, Line, Lost
from dora_voice_gateway.errors import ClientError
from dora_voice_gateway.media import samples_of

SAMPLE_BYTES = 4


class LiveSpeech:
    """Gives `ended` the samples of each utterance, 16 kHz mono. `longest_s`: of an utterance."""

    def __init__(self, bridge: Bridge, longest_s: float, sound_s: Rate, ended: Callable[[Samples], None]) -> None:
        self._bridge = bridge
        self._longest = round(longest_s * SOURCE_RATE_HZ)
        self._sound_s = sound_s
        self._ended = ended
        self._converter = RateConverter(SOURCE_RATE_HZ)
        self._line: Line | None = None
        """To the vad, while it finds out when utterances end. It counts what it hears, so it hears all or nothing."""
        self._kept = bytearray()
        """float32 samples."""
        self._first = 0
        """Position of the first sample that is kept, in the sound of this client."""
        self._begun_at: int | None = None
        """Where the vad heard an utterance begin that hasn't ended."""
        self._is_refused = False
        """The utterance failed: what still comes of it isn't heard."""

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line = self._begun_at = None

    def hear(self, audio: stream_protocol.Audio) -> None:
        """Raises ClientError for sound that can't be read, or is too much. The utterance is forgotten then."""
        if self._is_refused:
            self._is_refused = not audio.is_last_chunk
            return
        try:
            self._add(audio)
        except ClientError:
            self._forget()
            self._is_refused = not (audio.endpointing or audio.is_last_chunk)
            raise
        if audio.is_last_chunk:
            begun_at = self._first if self._begun_at is None else self._begun_at
            self.close()
            self._end_at(begun_at, self._end)

    @property
    def _end(self) -> int:
        return self._first + len(self._kept) // SAMPLE_BYTES

    def _add(self, audio: stream_protocol.Audio) -> None:
        # What is far too loud would be infinite at another rate, and no node takes that.
        samples = np.clip(samples_of(base64.b64decode(audio.data), audio.format), -1, 1)
        self._check(len(samples) / audio.sample_rate)
        samples = self._converter.process(samples, audio.sample_rate)
        if audio.is_last_chunk:
            samples = np.concatenate([samples, self._converter.flush()])
        begin = self._end
        self._kept += samples.tobytes()
        if audio.endpointing:
            self._endpoint(samples, begin)
        else:
            self.close()
        if self._end - (self._first if self._begun_at is None else self._begun_at) > self._longest:
            self._refuse_length()

    def _check(self, seconds: float) -> None:
        if seconds * SOURCE_RATE_HZ > self._longest:
            self._refuse_length()
        if not self._sound_s.allows(seconds):
            raise ClientError("rate_limited", "sound comes faster than it is spoken: the utterance is forgotten")

    def _refuse_length(self) -> NoReturn:
        longest_s = self._longest / SOURCE_RATE_HZ
        raise ClientError("too_large", f"an utterance of more than AUDIO_S={longest_s:g} s: it is forgotten")

    def _endpoint(self, samples: Samples, begin: int) -> None:
        if self._line is None:
            self._line = self._bridge.open("listen", self._receive)
        if self._begun_at is None:
            # The vad may not have come to it yet: a client may send faster than anybody speaks.
            self._keep_from(self._end - self._longest)
        self._line.send(
            Audio,
            port="endpoint_audio",
            samples=samples,
            sample_rate=SOURCE_RATE_HZ,
            audio_ms=begin * 1000 // SOURCE_RATE_HZ,
        )

    def _receive(self, message: Message | Lost) -> None:
        """What the vad finds. If it crashed, the utterance is taken as it is."""
        if isinstance(message, Lost):
            if message.port == "endpoint" and self._begun_at is not None:
                self._end_at(self._begun_at, self._end)
        elif isinstance(message, Control) and message.audio_ms is not None:
            at = message.audio_ms * SOURCE_RATE_HZ // 1000
            if message.verb == "start":
                self._begun_at = at
            elif message.verb == "drop":
                self._begun_at = None
            elif message.verb == "commit" and self._begun_at is not None:
                self._end_at(self._begun_at, at)

    def _end_at(self, begin: int, end: int) -> None:
        first, last = (max(0, position - self._first) * SAMPLE_BYTES for position in (begin, end))
        utterance = np.frombuffer(self._kept[first:last], np.float32)
        self._keep_from(end)
        self._begun_at = None
        self._ended(utterance)

    def _forget(self) -> None:
        self.close()
        self._converter = RateConverter(SOURCE_RATE_HZ)
        self._keep_from(self._end)

    def _keep_from(self, position: int) -> None:
        position = min(max(position, self._first), self._end)
        del self._kept[: (position - self._first) * SAMPLE_BYTES]
        self._first = position
