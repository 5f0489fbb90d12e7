"""/ws/voice: a live conversation with one client. It is the client's microphone, and its loudspeaker."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dora_voice.audio import EMPTY, Samples
from dora_voice.messages import Audio, Control, Message, Played, Text
from dora_voice_gateway import voice_protocol as protocol
from dora_voice_gateway.admission import Rate
from dora_voice_gateway.bridge import Lost
from dora_voice_gateway.connection import TRY_LATER, Connection
from dora_voice_gateway.errors import ClientError, GoneError
from dora_voice_gateway.gateway import Gateway
from dora_voice_gateway.media import samples_of
from dora_voice_gateway.parsing import parse
from dora_voice_session import requests
from dora_voice_session.schema import Document, SessionSettings

FIN, SPECULATIVE = 1, 2
MOST_WAITING = 2_000
"""Messages that a slow client hasn't taken: 40 s of sound; tts sends no more than 2 s ahead of what was played."""
MOST_REPLIES = 64
FASTEST = 1.5
"""Sound comes as fast as it is spoken; so much faster after the network was slow, for `BURST_S` of it at once."""
BURST_S = 10.0


async def serve(connection: Connection, gateway: Gateway) -> None:
    begin = await _begin(connection)

    async def tell(position: int) -> None:
        await connection.send(protocol.Queued(position=position))

    async with gateway.voices.take(tell):
        voice = Voice(connection, gateway, begin.sample_rate)
        writing = asyncio.create_task(voice.write())
        try:
            with gateway.measured("voice", "-"):
                voice.start(begin.settings)
                await voice.read()
                await voice.flush_out()
        finally:
            writing.cancel()
            voice.close()


async def _begin(connection: Connection) -> protocol.Begin:
    """The client's first message. Others are refused."""
    while True:
        try:
            message = parse(protocol.CLIENT, await connection.receive())
            if isinstance(message, protocol.Begin):
                return message
            raise ClientError("bad_request", f"type={message.type!r}: expected 'begin' first")
        except ClientError as error:
            await connection.send(protocol.Failed(code=error.code, error=str(error)))


@dataclass(slots=True)
class Reply:
    """What was sent of one, and how far the text is that it says: (samples sent, end of the text)."""

    samples: int = 0
    marks: list[tuple[int, int]] = field(default_factory=list)
    heard_samples: int = 0
    is_over: bool = False

    def sent(self, samples: int, text_end: int | None) -> None:
        self.samples += samples
        self.marks.append((self.samples, text_end or 0))

    def text_end(self, samples: int) -> int:
        """Of what was heard."""
        return max((end for at, end in self.marks if at <= samples), default=0)


class Voice:
    def __init__(self, connection: Connection, gateway: Gateway, rate_hz: int) -> None:
        self._connection = connection
        self._gateway = gateway
        self._rate_hz = rate_hz
        self._line = gateway.bridge.open("voice", self._receive)
        self._newest = 0
        self._requests = Rate(gateway.config.requests_per_minute, time.monotonic)
        self._sound_s = Rate(60 * FASTEST, time.monotonic)
        self._sent_samples = 0
        self._typed: dict[int, bool] = {}
        """Segments of typed words, and whether their reply is spoken."""
        self._replies: OrderedDict[int, Reply] = OrderedDict()
        self._committed_s: dict[int, float] = {}
        self._outgoing: asyncio.Queue[Document | bytes | None] = asyncio.Queue()
        self._is_slow = False
        self._is_too_fast = False

    def start(self, settings: SessionSettings | None) -> None:
        if settings is not None:
            self._request({"type": "session", "settings": settings.model_dump(exclude_unset=True)})
        self._put(protocol.Ready(session_id=self._line.session_id))

    def close(self) -> None:
        self._line.close()

    async def read(self) -> None:
        """Takes what the client sends until it ends."""
        while True:
            message = await self._connection.receive()
            try:
                if isinstance(message, bytes):
                    self._hear(message)
                elif isinstance(said := parse(protocol.CLIENT, message), protocol.End):
                    self._put(protocol.Ended())
                    return
                else:
                    self._obey(said)
            except ClientError as error:
                self._put(protocol.Failed(code=error.code, error=str(error)))

    async def write(self) -> None:
        """Sends what waits. A client that doesn't take it is told so by the close code, and goes."""
        while (message := await self._outgoing.get()) is not None:
            try:
                if isinstance(message, bytes):
                    await self._connection.send_bytes(message)
                else:
                    await self._connection.send(message)
            except GoneError:
                return

    async def flush_out(self) -> None:
        self._outgoing.put_nowait(None)

    def _hear(self, data: bytes) -> None:
        samples = samples_of(data, "f32le")
        if not self._sound_s.allows(len(samples) / self._rate_hz):
            if not self._is_too_fast:
                self._is_too_fast = True
                raise ClientError("rate_limited", f"sound comes faster than it is spoken: expected {self._rate_hz} Hz")
            return
        self._is_too_fast = False
        self._line.send(
            Audio,
            port="audio",
            samples=np.clip(samples, -1, 1),
            sample_rate=self._rate_hz,
            audio_ms=self._sent_samples * 1000 // self._rate_hz,
        )
        self._sent_samples += len(samples)

    def _obey(self, said: protocol.Client) -> None:
        if isinstance(said, protocol.Played):
            self._played(said)
        elif isinstance(said, protocol.Stop):
            self._interrupt(self._mint())
        elif isinstance(said, protocol.Say):
            if not self._requests.allows():
                limit = self._gateway.config.requests_per_minute
                raise ClientError("rate_limited", f"more than REQUESTS_PER_MINUTE={limit}")
            self._say(said)
        else:
            raise ClientError("bad_request", "type='begin': expected once, at the beginning")

    def _say(self, said: protocol.Say) -> None:
        segment_id = self._mint()
        self._interrupt(segment_id)
        self._typed[segment_id] = said.speak
        request = {
            "messages": [{"role": "user", "content": said.text}],
            "is_last_chunk": True,
            "streaming": {"generate_audio": said.speak},
        }
        # Both are one segment: what interrupts it takes back none of the words.
        self._request({"type": "prefill", "request": request}, segment_id, fin=False)
        self._request({"type": "generate", "streaming": {"generate_audio": said.speak}}, segment_id)
        self._put(protocol.Transcript(segment_id=segment_id, text=said.text))
        self._put(protocol.Verb(type="commit", segment_id=segment_id))
        self._committed_s[segment_id] = time.monotonic()

    def _interrupt(self, segment_id: int) -> None:
        """Everything before this segment ends."""
        self._line.send(Control, port="client_control", verb="flush", segment_id=segment_id, flush=True)
        self._flush(segment_id)

    def _played(self, said: protocol.Played) -> None:
        reply = self._replies.get(said.segment_id)
        if reply is None or said.samples > reply.samples:
            sent = reply.samples if reply else 0
            raise ClientError(
                "bad_request", f"samples={said.samples} of segment_id={said.segment_id}: only {sent} were sent"
            )
        if reply.is_over:
            return
        reply.heard_samples, reply.is_over = max(reply.heard_samples, said.samples), said.fin
        self._line.send(
            Played,
            port="played",
            segment_id=said.segment_id,
            samples=reply.heard_samples,
            text_end=reply.text_end(reply.heard_samples),
            fin=said.fin,
        )

    def _mint(self) -> int:
        # The vad may be giving the next number to somebody who begins to speak.
        self._newest += 2
        return self._newest

    def _request(self, document: dict[str, Any], segment_id: int | None = None, *, fin: bool = True) -> None:
        segment_id = self._mint() if segment_id is None else segment_id
        document["request_id"] = str(segment_id)
        named = document.get("request", document)
        named["session_id"] = self._line.session_id
        self._line.send(Text, port="request", segment_id=segment_id, text=json.dumps(document), fin=fin)

    # What comes from the nodes

    def _receive(self, message: Message | Lost) -> None:
        if isinstance(message, Lost):
            self._lose(message.port)
            return
        segment_id = message.segment_id or 0
        self._newest = max(self._newest, segment_id)
        match message:
            case Control():
                self._control(message, segment_id)
            case Audio():
                self._speak(message, segment_id)
            case Text(port="hypothesis") if not message.fin:
                self._put(protocol.Hypothesis(segment_id=segment_id, text=message.text))
            case Text(port="user_text"):
                self._put(
                    protocol.Transcript(
                        segment_id=segment_id, text=message.text, rejected=message.rejected, error=message.error
                    )
                )
            case Text(port="reply_text") if segment_id not in self._typed:
                self._put(
                    protocol.Reply(segment_id=segment_id, text_delta=message.text, fin=message.fin, error=message.error)
                )
            case Text(port="result"):
                self._result(requests.RESULT.validate_json(message.text), segment_id)

    def _control(self, control: Control, segment_id: int) -> None:
        match control.verb:
            case "start":
                self._put(protocol.SpeechStarted(segment_id=segment_id, continues=control.continues))
            case "commit":
                self._committed_s[segment_id] = time.monotonic()
                self._put(protocol.Verb(type="commit", segment_id=segment_id))
            case "flush":
                self._flush(segment_id)
            case "drop":
                self._replies.pop(segment_id, None)
                self._put(protocol.Verb(type="drop", segment_id=segment_id))
            case "pause" | "resume":
                self._put(protocol.Verb(type=control.verb, segment_id=segment_id))

    def _flush(self, segment_id: int) -> None:
        for older in [each for each in self._committed_s if each < segment_id]:
            del self._committed_s[older]
        self._put(protocol.Verb(type="flush", segment_id=segment_id))

    def _speak(self, audio: Audio, segment_id: int) -> None:
        reply = self._replies.setdefault(segment_id, Reply())
        if len(self._replies) > MOST_REPLIES:
            self._replies.popitem(last=False)
        reply.sent(len(audio.samples), audio.text_end)
        if (committed_s := self._committed_s.pop(segment_id, None)) is not None:
            waited_ms = (time.monotonic() - committed_s) * 1000
            self._put(protocol.Timing(segment_id=segment_id, first_audio_ms=waited_ms))
        flags = FIN * audio.fin | SPECULATIVE * audio.speculative
        self._send_sound(segment_id, flags, audio.text_end or 0, audio.samples)

    def _send_sound(self, segment_id: int, flags: int, text_end: int, samples: Samples) -> None:
        self._put(struct.pack("<QII", segment_id, flags, text_end) + samples.astype("<f4").tobytes())

    def _result(self, result: requests.Result, segment_id: int) -> None:
        if isinstance(result, requests.Failed):
            self._put(protocol.Failed(code=result.code, error=result.error))
            if segment_id in self._typed:
                self._put(protocol.Reply(segment_id=segment_id, text_delta="", fin=True, error=result.code))
                self._send_sound(segment_id, FIN, 0, EMPTY)
        elif isinstance(result, requests.Chunk) and segment_id in self._typed:
            self._put(protocol.Reply(segment_id=segment_id, text_delta=result.chunk.text_delta))
        elif isinstance(result, requests.Responded) and segment_id in self._typed:
            self._gateway.count_tokens(result.response.usage)
            self._put(protocol.Reply(segment_id=segment_id, text_delta="", fin=True))

    def _lose(self, port: str) -> None:
        if who := {"user_text": "stt", "result": "llm", "reply_audio": "tts", "control": "vad"}.get(port):
            self._put(protocol.Failed(code="unavailable", error=f"the node {who} crashed, and is coming back"))

    def _put(self, message: Document | bytes) -> None:
        if self._outgoing.qsize() < MOST_WAITING:
            self._outgoing.put_nowait(message)
        elif not self._is_slow:
            self._is_slow = True
            why = f"too slow: {MOST_WAITING} messages wait"
            self._closing = asyncio.create_task(self._connection.close(TRY_LATER, why))
