"""What is known of one session, as the entries of a journal tell it one after the other. Pure.

Each function makes an entry, a JSON object, or several; `Past.apply` says what it means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dora_voice_llm.replies import Reply
from dora_voice_session.schema import ChatMessage, SessionSettings
from dora_voice_session.turns import Turn, Turns

Entry = dict[str, Any]


def said(turn_id: int, text: str) -> Entry:
    """What the user said, all of it."""
    return {"what": "said", "turn": turn_id, "text": text}


def replied(reply: Reply, start: int, text: str) -> Entry:
    """What a reply has from the code point `start` on, and so far it was heard by now."""
    return {"what": "replied", "start": start, "text": text, **_heard(reply)}


def told(turn: Turn, unheard: Reply | None) -> Iterator[Entry]:
    """All of a turn, and of its reply, which may not have been heard to its end yet."""
    yield said(turn.turn_id, turn.messages[-1].text)
    if turn.reply is not None:
        segment_id = turn.turn_id if turn.reply_id is None else turn.reply_id
        known = Reply(segment_id, turn.turn_id, is_spoken=False, text=turn.reply)
        yield replied(unheard or known, 0, turn.reply)
        if unheard is None:
            yield heard(turn.turn_id, len(turn.reply))


def playing(reply: Reply) -> Entry:
    """So far the reply was heard by now."""
    return {"what": "playing", **_heard(reply)}


def heard(turn_id: int, text_end: int) -> Entry:
    """So far the reply was heard, and no further."""
    return {"what": "heard", "turn": turn_id, "text_end": text_end}


def dropped(segment_id: int) -> Entry:
    """Neither the turn nor the reply of this segment ever was."""
    return {"what": "dropped", "turn": segment_id}


def ended() -> Entry:
    return {"what": "ended"}


def is_end(entry: Mapping[str, Any]) -> bool:
    return entry["what"] == "ended"


@dataclass(frozen=True, slots=True)
class Unheard:
    """A reply that wasn't heard to its end: its turn, its segment, and the code point up to where it was heard."""

    turn_id: int
    segment_id: int
    text_end: int


@dataclass(slots=True)
class Past:
    settings: SessionSettings | None = None
    turns: Turns = field(default_factory=Turns)
    unheard: dict[int, Unheard] = field(default_factory=dict)
    """By turn."""

    def whole(self) -> Entry:
        """The one entry that tells all of this."""
        return {
            "what": "whole",
            "settings": self.settings.model_dump(exclude_none=True) if self.settings else None,
            "turns": [_document(turn) for turn in self.turns],
            "unheard": [[reply.turn_id, reply.segment_id, reply.text_end] for reply in self.unheard.values()],
        }

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Raises KeyError, ValueError or TypeError for what isn't an entry."""
        what = entry["what"]
        if what == "whole":
            self._replace(entry)
            return
        turn_id = _natural(entry["turn"])
        if what == "said":
            self.turns.revise([ChatMessage(role="user", content=entry["text"])], turn_id)
        elif what in ("replied", "playing"):
            self._reply(turn_id, entry)
        elif what == "heard":
            self.turns.cut(turn_id, _natural(entry["text_end"]))
            self.unheard.pop(turn_id, None)
        elif what == "dropped":
            self.turns.drop(turn_id)
            for reply in [reply for reply in self.unheard.values() if turn_id in (reply.turn_id, reply.segment_id)]:
                del self.unheard[reply.turn_id]
        else:
            raise ValueError(f"what={what!r}")

    def _replace(self, entry: Mapping[str, Any]) -> None:
        settings = entry["settings"]
        told = Past(
            None if settings is None else SessionSettings.model_validate(settings),
            Turns([_turn(document) for document in entry["turns"]]),
            {reply[0]: Unheard(*map(_natural, reply)) for reply in entry["unheard"]},
        )
        self.settings, self.turns, self.unheard = told.settings, told.turns, told.unheard

    def _reply(self, turn_id: int, entry: Mapping[str, Any]) -> None:
        if (turn := self.turns.find(turn_id)) is None:
            return
        segment_id = _natural(entry["segment"])
        if entry["what"] == "replied":
            turn.reply, turn.is_open = (turn.reply or "")[: _natural(entry["start"])] + entry["text"], False
            turn.reply_id = segment_id
        self.unheard[turn_id] = Unheard(turn_id, segment_id, _natural(entry["text_end"]))


def _heard(reply: Reply) -> Entry:
    return {"turn": reply.turn_id, "segment": reply.segment_id, "text_end": reply.heard_by_now}


def _document(turn: Turn) -> Entry:
    messages = [message.model_dump() for message in turn.messages]
    document = {"turn": turn.turn_id, "messages": messages, "reply": turn.reply, "is_open": turn.is_open}
    return document if turn.reply_id is None else document | {"reply_segment": turn.reply_id}


def _turn(document: Mapping[str, Any]) -> Turn:
    messages = [ChatMessage.model_validate(message) for message in document["messages"]]
    reply_id = _natural(document["reply_segment"]) if "reply_segment" in document else None
    return Turn(_natural(document["turn"]), messages, document["reply"], reply_id, bool(document["is_open"]))


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r}: expected a whole number from 0")
    return value
