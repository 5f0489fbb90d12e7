"""The messages of /ws/voice: a live conversation. JSON as below; sound as binary frames both ways.

From the client: float32 little-endian mono PCM at the `sample_rate` of Begin, about 20 ms a frame.
To the client: a header of 16 bytes (uint64 segment id, uint32 flags: 1 = last of the segment, 2 = speculative,
uint32 end of the text that is said by then, in code points; little-endian), then float32 little-endian mono PCM at
24 kHz.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from dora_voice_gateway.errors import Code
from dora_voice_session.schema import LONGEST_TEXT, REPLY_RATE_HZ, Document, SessionSettings

KIND = "what the message is"
SegmentId = Annotated[int, Field(ge=0, lt=2**62, description="which utterance, and everything that comes of it")]

# From the client


class Begin(Document):
    """The first message. Answered by Queued (any number) and Ready."""

    type: Literal["begin"] = Field(description=KIND)
    sample_rate: int = Field(default=16_000, ge=8_000, le=192_000, description="of the sound that will be sent, Hz")
    settings: SessionSettings | None = Field(default=None, description="of this conversation")


class Say(Document):
    """Typed words. They interrupt what is being said, as speech does."""

    type: Literal["text"] = Field(description=KIND)
    text: str = Field(min_length=1, max_length=LONGEST_TEXT, description="what is said")
    speak: bool = Field(default=True, description="the reply is spoken, too")


class Played(Document):
    """So much of a reply was heard. Every 100 ms, and with `fin` when it ended or was cut: it paces what is sent."""

    type: Literal["played"] = Field(description=KIND)
    segment_id: SegmentId
    samples: int = Field(ge=0, description="of the segment's reply, 24 kHz, since it began")
    fin: bool = Field(default=False, description="nothing more of it will be heard")


class Stop(Document):
    """What is being said ends here."""

    type: Literal["stop"] = Field(description=KIND)


class End(Document):
    """The conversation is over. Answered by Ended, and the connection is closed."""

    type: Literal["end"] = Field(description=KIND)


Client = Annotated[Begin | Say | Played | Stop | End, Field(discriminator="type")]
CLIENT: TypeAdapter[Client] = TypeAdapter(Client)

# To the client


class Queued(Document):
    """All places are busy."""

    type: Literal["queued"] = Field(default="queued", description=KIND)
    position: int = Field(ge=1, description="1: the next")


class Ready(Document):
    """The conversation has begun."""

    type: Literal["ready"] = Field(default="ready", description=KIND)
    session_id: str = Field(description="the conversation's name in the dataflow and its logs")
    output_sample_rate: int = Field(default=REPLY_RATE_HZ, description="of the sound that is sent, Hz")


class SpeechStarted(Document):
    type: Literal["speech_started"] = Field(default="speech_started", description=KIND)
    segment_id: SegmentId
    continues: SegmentId | None = Field(default=None, description="the segment whose rest this is")


class Hypothesis(Document):
    type: Literal["hypothesis"] = Field(default="hypothesis", description=KIND)
    segment_id: SegmentId
    text: str = Field(description="the whole current guess; it may change")


class Transcript(Document):
    """What was said, for sure; it counts from the segment's Commit on."""

    type: Literal["transcript"] = Field(default="transcript", description=KIND)
    segment_id: SegmentId
    text: str = Field(description="empty if it was rejected or failed")
    rejected: str | None = Field(default=None, description="why there is no speech in it")
    error: str | None = Field(default=None, description="code: message")


class Reply(Document):
    """What follows of the reply."""

    type: Literal["reply"] = Field(default="reply", description=KIND)
    segment_id: SegmentId
    text_delta: str = Field(description="the deltas of a segment add up to its reply")
    fin: bool = Field(default=False, description="no more of its text comes")
    error: str | None = Field(default=None, description="code: message; of its text, or of its sound")


class Verb(Document):
    """pause, resume: the reply of this segment holds, goes on at the very sample. commit: it is real, its reply is
    played. flush: everything older ends. drop: this segment never happened."""

    type: Literal["pause", "resume", "commit", "flush", "drop"] = Field(description=KIND)
    segment_id: int = Field(
        ge=0, lt=2**62, description="which one it is about; of a flush the first that lives: all smaller ones end"
    )


class Timing(Document):
    """Of a segment's answer."""

    type: Literal["timing"] = Field(default="timing", description=KIND)
    segment_id: SegmentId
    first_audio_ms: float = Field(ge=0, description="ms from the segment's commit to its first sound; 0: it was there")


class Failed(Document):
    type: Literal["error"] = Field(default="error", description=KIND)
    code: Code = Field(description="which kind of error it is; these names stay")
    error: str = Field(description="which field or limit, its value, and what was expected")


class Ended(Document):
    type: Literal["ended"] = Field(default="ended", description=KIND)


Server = Queued | Ready | SpeechStarted | Hypothesis | Transcript | Reply | Verb | Timing | Failed | Ended
