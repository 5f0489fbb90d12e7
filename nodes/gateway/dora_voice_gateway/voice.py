"""/ws/voice: a live conversation with one client. It is the client's microphone, and its loudspeaker."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections import OrderedDict
from typing import Any

import numpy as np

from dora_voice.messages import Audio, Control, Message, Played, Text
from dora_voice_gateway import voice_protocol as protocol
from dora_voice_gateway.admission import FASTEST_SOUND, Rate
from dora_voice_gateway.bridge import Lost
from dora_voice_gateway.connection import TRY_LATER, Connection
from dora_voice_gateway.errors import ClientError
from dora_voice_gateway.gateway import Gateway
from dora_voice_gateway.media import samples_of
from dora_voice_gateway.parsing import parse
from dora_voice_gateway.presence import WHO
from dora_voice_gateway.side_by_side import side_by_side
from dora_voice_gateway.voice_reply import Reply
from dora_voice_session import requests
from dora_voice_session.schema import Document, SessionSettings

FIN, SPECULATIVE = 1, 2
MOST_WAITING = 2_000
"""Messages that a slow client hasn't taken: 40 s of sound; tts sends no more than 2 s ahead of what was played."""
MOST_REPLIES = 64
"""Of which something is still known."""
SHORTEST_FRAME_S = 0.005
"""A shorter one counts as much: each is a message to the vad."""


async def serve(connection: Connection, gateway: Gateway) -> None:
    begin = await _begin(connection)

    async def tell(position: int) -> None:
        await connection.send(protocol.Queued(position=position))

    async with gateway.voices.take(tell):
        voice = Voice(connection, gateway, begin.sample_rate)
        try:
            with gateway.measured("voice", "-"):
                voice.start(begin.settings)
                await side_by_side(voice.read(), voice.write())
        finally:
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


class Voice:
    def __init__(self, connection: Connection, gateway: Gateway, rate_hz: int) -> None:
        self._connection = connection
        self._gateway = gateway
        self._rate_hz = rate_hz
        self._line = gateway.bridge.open("voice", self._receive)
        self._is_ready = False
        self._newest = 0
        self._floor = 0
        """Every older segment has ended."""
        self._requests = gateway.request_rate()
        self._sound_s = Rate(60 * FASTEST_SOUND, time.monotonic)
        self._complaints = Rate(1, time.monotonic)
        """About sound that comes too fast."""
        self._sent_samples = 0
        self._replies: OrderedDict[int, Reply] = OrderedDict()
        """By segment, those that were begun last."""
        self._outgoing: asyncio.Queue[Document | bytes] = asyncio.Queue()
        self._is_slow = False

    def start(self, settings: SessionSettings | None) -> None:
        """Ready is told when the settings are in force, or refused: words that come at once could overtake them."""
        if settings is None:
            self._ready()
        elif who := self._gateway.bridge.presence.away("llm"):
            self._put(
                protocol.Failed(code="unavailable", error=f"settings: the node {who} crashed, and is not back yet")
            )
            self._ready()
        else:
            self._request({"type": "session", "settings": settings.model_dump(exclude_unset=True)})

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
                    # Nothing comes behind it.
                    self.close()
                    self._put(protocol.Ended())
                    await self._outgoing.join()
                    return
                else:
                    self._obey(said)
            except ClientError as error:
                self._gateway.count_unread("voice", error)
                self._put(protocol.Failed(code=error.code, error=str(error)))

    async def write(self) -> None:
        """Sends what waits. Raises GoneError if the client doesn't take it: the close code says so."""
        while True:
            message = await self._outgoing.get()
            if isinstance(message, bytes):
                await self._connection.send_bytes(message)
            else:
                await self._connection.send(message)
            self._outgoing.task_done()

    def _ready(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._put(protocol.Ready(session_id=self._line.session_id))

    def _hear(self, data: bytes) -> None:
        samples = samples_of(data, "f32le")
        if not self._sound_s.allows(max(SHORTEST_FRAME_S, len(samples) / self._rate_hz)):
            if self._complaints.allows():
                raise ClientError("rate_limited", f"sound comes faster than it is spoken: expected {self._rate_hz} Hz")
            return
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
        elif not isinstance(said, protocol.Stop | protocol.Say):
            raise ClientError("bad_request", f"type={said.type!r}: expected once, at the beginning")
        else:
            self._requests.check()
            if isinstance(said, protocol.Stop):
                self._interrupt(self._mint())
            else:
                self._say(said)

    def _say(self, said: protocol.Say) -> None:
        segment_id = self._mint()
        self._interrupt(segment_id)
        reply = self._reply(segment_id)
        reply.is_typed, reply.is_spoken, reply.is_understood = True, said.speak, True
        request = {
            "messages": [{"role": "user", "content": said.text}],
            "is_last_chunk": True,
            "streaming": {"generate_audio": said.speak},
        }
        self._put(protocol.Transcript(segment_id=segment_id, text=said.text))
        if self._commit(segment_id):
            # Both are one segment: what interrupts it takes back none of the words.
            self._request({"type": "prefill", "request": request}, segment_id, fin=False)
            self._request({"type": "generate", "streaming": {"generate_audio": said.speak}}, segment_id)

    def _interrupt(self, segment_id: int) -> None:
        """Everything before this segment ends."""
        self._floor = segment_id
        self._flush(segment_id)
        self._put(protocol.Verb(type="flush", segment_id=segment_id))

    def _flush(self, segment_id: int) -> None:
        self._line.send(Control, port="client_control", verb="flush", segment_id=segment_id, flush=True)

    def _played(self, said: protocol.Played) -> None:
        reply = self._replies.get(said.segment_id)
        sent = reply.sent_samples if reply else 0
        if reply is None or said.samples > sent:
            raise ClientError(
                "bad_request", f"samples={said.samples} of segment_id={said.segment_id}: only {sent} were sent"
            )
        if reply.is_over:
            return
        reply.heard(said.samples)
        if said.fin:
            reply.end()
        self._line.send(
            Played,
            port="played",
            segment_id=said.segment_id,
            samples=reply.heard_samples,
            text_end=reply.heard_end,
            fin=said.fin,
        )

    def _reply(self, segment_id: int) -> Reply:
        reply = self._replies.setdefault(segment_id, Reply())
        if len(self._replies) > MOST_REPLIES:
            self._replies.popitem(last=False)
        return reply

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
        if segment_id < self._floor and self._is_reply(message, segment_id):
            # It was on its way when it was interrupted.
            return
        match message:
            case Control():
                self._control(message, segment_id)
            case Audio():
                self._speak(message, segment_id)
            case Text(port="hypothesis") if not message.fin:
                self._put(protocol.Hypothesis(segment_id=segment_id, text=message.text))
            case Text(port="user_text"):
                self._understood(message, segment_id)
            case Text(port="reply_text"):
                self._pass_on(message, segment_id)
            case Text(port="result"):
                self._result(message, segment_id)

    def _is_reply(self, message: Message, segment_id: int) -> bool:
        # Other results are of the settings.
        is_result = message.port == "result" and segment_id in self._replies
        return is_result or message.port in ("reply_audio", "reply_text")

    def _control(self, control: Control, segment_id: int) -> None:
        match control.verb:
            case "start":
                self._reply(segment_id)
                self._put(protocol.SpeechStarted(segment_id=segment_id, continues=control.continues))
            case "commit":
                self._commit(segment_id)
            case "drop":
                if (reply := self._replies.get(segment_id)) and reply.sent_samples:
                    # The client may say how much it had of it.
                    reply.end()
                else:
                    self._replies.pop(segment_id, None)
                self._put(protocol.Verb(type="drop", segment_id=segment_id))
            case "flush":
                self._floor = max(self._floor, segment_id)
                self._put(protocol.Verb(type="flush", segment_id=segment_id))
            case "pause" | "resume":
                self._put(protocol.Verb(type=control.verb, segment_id=segment_id))

    def _commit(self, segment_id: int) -> bool:
        """Whether somebody is there to answer it: what a node that is away is sent is lost."""
        reply = self._reply(segment_id)
        if reply.is_forgotten:
            return False
        self._put(protocol.Verb(type="commit", segment_id=segment_id))
        reply.is_committed = True
        if who := reply.lost_with or self._gateway.bridge.presence.away(*reply.needs):
            self._fail(reply, segment_id, f"unavailable: the node {who} crashed")
            return False
        if reply.sent_samples:
            self._tell_timing(segment_id, 0)
        else:
            reply.committed_s = time.monotonic()
        return True

    def _tell_timing(self, segment_id: int, waited_s: float) -> None:
        self._gateway.metrics.first_output.labels("voice").observe(waited_s)
        self._put(protocol.Timing(segment_id=segment_id, first_audio_ms=waited_s * 1000))

    def _understood(self, said: Text, segment_id: int) -> None:
        reply = self._reply(segment_id)
        reply.is_understood = True
        if said.error or said.rejected is not None:
            # There is no reply to it.
            reply.end()
        self._put(protocol.Transcript(segment_id=segment_id, text=said.text, rejected=said.rejected, error=said.error))

    def _pass_on(self, fragment: Text, segment_id: int) -> None:
        reply = self._reply(segment_id)
        if reply.is_typed or reply.is_written:
            return
        reply.is_written = fragment.fin
        self._put(
            protocol.Reply(segment_id=segment_id, text_delta=fragment.text, fin=fragment.fin, error=fragment.error)
        )

    def _speak(self, audio: Audio, segment_id: int) -> None:
        reply = self._reply(segment_id)
        if reply.is_sounded:
            return
        reply.is_sounded = audio.fin
        reply.sent(len(audio.samples), audio.text_end or 0)
        if reply.committed_s is not None and len(audio.samples):
            waited_s, reply.committed_s = time.monotonic() - reply.committed_s, None
            self._tell_timing(segment_id, waited_s)
        if audio.error:
            self._put(protocol.Reply(segment_id=segment_id, text_delta="", error=audio.error))
        header = struct.pack("<QII", segment_id, FIN * audio.fin | SPECULATIVE * audio.speculative, audio.text_end or 0)
        self._put(header + audio.samples.astype("<f4").tobytes())

    def _result(self, message: Text, segment_id: int) -> None:
        # A node that crashed has ended it; `_lose` tells of that.
        result = None if message.error else requests.RESULT.validate_json(message.text)
        reply = self._replies.get(segment_id)
        if reply is None or not reply.is_typed:
            # Of the settings.
            if isinstance(result, requests.Failed):
                self._put(protocol.Failed(code=result.code, error=result.error))
            self._ready()
            return
        if reply.is_written:
            return
        match result:
            case requests.Chunk():
                if result.chunk.text_delta:
                    self._put(protocol.Reply(segment_id=segment_id, text_delta=result.chunk.text_delta))
            case requests.Responded():
                reply.is_written = True
                self._gateway.count_tokens(result.response.usage)
                self._put(protocol.Reply(segment_id=segment_id, text_delta="", fin=True))
            case requests.Failed():
                self._fail(reply, segment_id, f"{result.code}: {result.error}")
            case None:
                self._fail(reply, segment_id, message.error or "")

    def _fail(self, reply: Reply, segment_id: int, error: str) -> None:
        """Neither the rest of the typed words is read, nor of the reply written or spoken."""
        self._flush(segment_id + 1)
        self._put(protocol.Reply(segment_id=segment_id, text_delta="", fin=not reply.is_written, error=error))
        if reply.is_spoken and not reply.is_sounded:
            self._put(struct.pack("<QII", segment_id, FIN, 0))
        reply.is_understood = reply.is_written = reply.is_sounded = True

    def _lose(self, port: str) -> None:
        """What the client waits for, and would come from this node, doesn't come any more."""
        if who := WHO.get(port):
            if port != "recorded":
                self._put(protocol.Failed(code="unavailable", error=f"the node {who} crashed"))
            for segment_id, reply in self._replies.items():
                if segment_id < self._floor:
                    continue
                if who == "vad" and not (reply.is_committed or reply.is_understood):
                    reply.is_forgotten = True
                    self._line.send(Control, port="client_control", verb="drop", segment_id=segment_id)
                    self._put(protocol.Verb(type="drop", segment_id=segment_id))
                elif not reply.is_committed and reply.is_understood and who in reply.needs:
                    # What it was given is lost, also if it is back by the commit.
                    reply.lost_with = who
                elif reply.is_committed and who in reply.needs:
                    self._fail(reply, segment_id, f"unavailable: the node {who} crashed")
        if port == "result":
            self._ready()

    def _put(self, message: Document | bytes) -> None:
        if self._outgoing.qsize() < MOST_WAITING:
            self._outgoing.put_nowait(message)
        elif not self._is_slow:
            self._is_slow = True
            why = f"too slow: {MOST_WAITING} messages wait"
            self._closing = asyncio.create_task(self._connection.close(TRY_LATER, why))
