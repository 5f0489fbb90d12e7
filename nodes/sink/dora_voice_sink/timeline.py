"""The events of a conversation as spans, marks and latencies on one time axis, that of `t_s`. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dora_voice.messages import SPEAKER_RATE_HZ
from dora_voice_sink.record import Entry

HOLE_S = 0.25
"""Reports come every 0.1 s and arrive unevenly; more than this between two is a hole in what was played."""

LONGEST_REPLY_SAMPLES = 24 * 3600 * SPEAKER_RATE_HZ
"""More is a mistake, and no memory could hold its picture."""

VOICED = {"start", "hypothesis", "turn", "reply", "audio", "played", "commit", "drop", "rejected", "error"}
"""Events that make their segment one to show."""

BEGINNING = {"start", "hypothesis", "commit", "reply"}
"""Events that don't come late of what is over."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one of the two said. `heard` is the part that was heard of it, None if nothing was cut."""

    t_s: float
    text: str
    heard: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A hypothesis, or a fragment of a reply."""

    t_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Samples of a reply that were played without a hole."""

    begin_s: float
    first_sample: int
    end_sample: int

    @property
    def end_s(self) -> float:
        return self.begin_s + (self.end_sample - self.first_sample) / SPEAKER_RATE_HZ


@dataclass(frozen=True, slots=True)
class Exchange:
    """One segment: what the user said, and the reply to it. Times are None where it never came to that."""

    segment_id: int
    begin_s: float
    start_s: float | None = None
    commit_s: float | None = None
    drop_s: float | None = None
    cut_s: float | None = None
    flush_s: float | None = None
    """When it was flushed by a later one, and when it flushed earlier ones."""
    continues: int | None = None
    rejected: str | None = None
    user: Turn | None = None
    reply: Turn | None = None
    guesses: tuple[Said, ...] = ()
    fragments: tuple[Said, ...] = ()
    """Of the reply, as it was written."""
    audio_s: float | None = None
    """When the first of its sound was synthesised."""
    pieces: tuple[Piece, ...] = ()
    word_times_s: tuple[float, ...] = ()
    """When the listener had come to each word of the reply."""
    over_s: float | None = None
    """When the last report of its playing came."""
    errors: tuple[str, ...] = ()

    @property
    def spoken_until_s(self) -> float | None:
        """The end of the utterance as it was decided."""
        return self.commit_s if self.commit_s is not None else self.drop_s

    @property
    def reply_text(self) -> str:
        """The whole reply, or as much as was written of one that isn't over."""
        return self.reply.text if self.reply else "".join(fragment.text for fragment in self.fragments)

    @property
    def is_interrupted(self) -> bool:
        """Whether the user cut the reply; where it broke off by itself, its error says so."""
        if self.reply is None:
            return bool(self.pieces) and self.cut_s is not None
        return self.reply.heard is not None and self.reply.error is None

    @property
    def first_sound_s(self) -> float | None:
        return self.pieces[0].begin_s if self.pieces else None

    @property
    def spans(self) -> Iterator[tuple[float, float]]:
        """When something of it happened, the wait for its first sound included."""
        yield self.begin_s, self.spoken_until_s or self.begin_s
        yield from ((piece.begin_s, piece.end_s) for piece in self.pieces)
        yield from ((said.t_s, said.t_s) for said in (*self.guesses, *self.fragments))
        if self.commit_s is not None and self.sound_latency_s is not None:
            yield self.commit_s, self.commit_s + self.sound_latency_s

    @property
    def transcript_latency_s(self) -> float | None:
        return _between(self.commit_s, self.user.t_s if self.user else None)

    @property
    def words_latency_s(self) -> float | None:
        return _between(self.commit_s, self.fragments[0].t_s if self.fragments else None)

    @property
    def audio_latency_s(self) -> float | None:
        return _between(self.commit_s, self.audio_s)

    @property
    def sound_latency_s(self) -> float | None:
        return _between(self.commit_s, self.first_sound_s)

    @property
    def confirm_latency_s(self) -> float | None:
        """From the first sample of an utterance to the decision that it interrupts."""
        return _between(self.start_s, self.flush_s)

    @property
    def cut_latency_s(self) -> float | None:
        """From that decision to the speaker's report that this reply is silent."""
        return _between(self.cut_s, self.over_s)


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at one moment, or from then until `end_s`."""

    kind: str
    t_s: float
    segment_id: int
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """One session. `audio_offset_s` is the `t_s` of the source's first sample, None if nothing tells it."""

    session_id: str
    begin_s: float
    end_s: float
    audio_offset_s: float | None
    exchanges: tuple[Exchange, ...]
    marks: tuple[Mark, ...]
    gaps: int = 0


def conversations(entries: Iterable[Entry]) -> list[Conversation]:
    """One of each session, in order of appearance; after its `end` a session of the same name is another."""
    found: list[list[Entry]] = []
    newest: dict[str, list[Entry]] = {}
    over: set[str] = set()
    for entry in entries:
        session_id = entry.segment.session_id
        if session_id not in newest or (session_id in over and entry.event in BEGINNING):
            newest[session_id] = []
            found.append(newest[session_id])
            over.discard(session_id)
        newest[session_id].append(entry)
        if entry.event == "end":
            over.add(session_id)
    return [_conversation(of_it[0].segment.session_id, of_it) for of_it in found]


def _conversation(session_id: str, entries: list[Entry]) -> Conversation:
    by_segment: dict[int, list[Entry]] = {}
    for entry in entries:
        by_segment.setdefault(entry.segment.segment_id, []).append(entry)
    offset_s = _audio_offset_s(entries)
    flushes = [entry for entry in entries if entry.event == "flush"]
    exchanges = tuple(
        _exchange(segment_id, of_it, flushes, offset_s)
        for segment_id, of_it in by_segment.items()
        if any(entry.event in VOICED for entry in of_it)
    )
    exchanges = tuple(sorted(exchanges, key=lambda exchange: (exchange.begin_s, exchange.segment_id)))
    ends = [piece.end_s for exchange in exchanges for piece in exchange.pieces]
    return Conversation(
        session_id,
        begin_s=min([entries[0].t_s, *(exchange.begin_s for exchange in exchanges)]),
        end_s=max([entries[-1].t_s, *ends]),
        audio_offset_s=offset_s,
        exchanges=exchanges,
        marks=_marks(entries, {exchange.segment_id: exchange for exchange in exchanges}),
        gaps=sum(entry.event == "gap" for entry in entries),
    )


def _audio_offset_s(entries: Iterable[Entry]) -> float | None:
    """`start` names the segment's first sample, which is past when it is sent; the others name the newest one."""
    offsets = [
        (entry.event, entry.t_s - ms / 1000) for entry in entries if (ms := entry.number("audio_ms")) is not None
    ]
    newest = [offset_s for event, offset_s in offsets if event not in ("start", "played")]
    starts = [offset_s for event, offset_s in offsets if event == "start"]
    return statistics.median(newest or starts) if newest or starts else None


def _exchange(segment_id: int, entries: list[Entry], flushes: list[Entry], offset_s: float | None) -> Exchange:
    first = {entry.event: entry for entry in reversed(entries)}
    turns = {entry.text("role"): _turn(entry) for entry in entries if entry.event == "turn"}
    played = [entry for entry in entries if entry.event == "played"]
    over = next((entry for entry in played if entry.values.get("fin") is True), None)
    start_s = _audio_time_s(first.get("start"), offset_s)
    pieces = _pieces(played)
    times_s = [entry.t_s for entry in entries if entry.event in VOICED]
    reply = turns.get("assistant")
    fragments = _said(entries, "reply")
    return Exchange(
        segment_id,
        begin_s=start_s if start_s is not None else min([*times_s, *(piece.begin_s for piece in pieces[:1])]),
        start_s=start_s,
        commit_s=_time_s(first.get("commit")),
        drop_s=_time_s(first.get("drop")),
        cut_s=_cut_s(segment_id, entries, flushes, reply, over),
        flush_s=_time_s(first.get("flush")),
        continues=_continues(first.get("start")),
        rejected=first["rejected"].text("reason") if "rejected" in first else None,
        user=turns.get("user"),
        reply=reply,
        guesses=_said(entries, "hypothesis"),
        fragments=fragments,
        audio_s=_time_s(first.get("audio")),
        pieces=pieces,
        word_times_s=_word_times_s(reply.text if reply else "".join(one.text for one in fragments), played),
        over_s=_time_s(over),
        errors=tuple(entry.text("error") or "unknown" for entry in entries if entry.event == "error"),
    )


def _continues(start: Entry | None) -> int | None:
    segment_id = start.number("continues") if start else None
    return None if segment_id is None else int(segment_id)


def _turn(entry: Entry) -> Turn:
    return Turn(entry.t_s, entry.text("text") or "", entry.text("heard"), entry.text("error"))


def _said(entries: Iterable[Entry], event: str) -> tuple[Said, ...]:
    return tuple(Said(entry.t_s, entry.text("text") or "") for entry in entries if entry.event == event)


def _cut_s(
    segment_id: int, entries: list[Entry], flushes: list[Entry], reply: Turn | None, over: Entry | None
) -> float | None:
    """The first flush by a later segment that found this one alive."""
    begin_s = entries[0].t_s
    ends_s = [entry.t_s for entry in entries if entry.event in ("drop", "rejected")]
    ends_s += [over.t_s] if over else []
    ends_s += [reply.t_s] if reply and reply.heard is None else []
    end_s = min(ends_s, default=float("inf"))
    hits = (flush.t_s for flush in flushes if flush.segment.segment_id > segment_id)
    return next((t_s for t_s in hits if begin_s <= t_s < end_s), None)


def _pieces(played: Iterable[Entry]) -> tuple[Piece, ...]:
    """Each report says that the samples since the one before have just been played."""
    pieces: list[Piece] = []
    reached = 0
    for entry in played:
        samples = int(entry.number("samples") or 0)
        if not reached < samples <= LONGEST_REPLY_SAMPLES:
            continue
        begin_s = max(0.0, entry.t_s - (samples - reached) / SPEAKER_RATE_HZ)
        if pieces and begin_s - pieces[-1].end_s < HOLE_S:
            pieces[-1] = Piece(pieces[-1].begin_s, pieces[-1].first_sample, samples)
        else:
            pieces.append(Piece(begin_s, reached, samples))
        reached = samples
    return tuple(pieces)


def _word_times_s(text: str, played: Iterable[Entry]) -> tuple[float, ...]:
    """Each report tells how far in the text the listener is."""
    starts = [word.start() for word in re.finditer(r"\S+", text)]
    times_s: list[float] = []
    for entry in played:
        reached = entry.number("text_end") or 0
        while len(times_s) < len(starts) and starts[len(times_s)] < reached:
            times_s.append(entry.t_s)
    return tuple(times_s)


def _marks(entries: Sequence[Entry], exchanges: dict[int, Exchange]) -> tuple[Mark, ...]:
    marks = []
    for index, entry in enumerate(entries):
        segment_id = entry.segment.segment_id
        if entry.event == "pause":
            end_s = _pause_end_s(entry, entries[index + 1 :], exchanges.get(segment_id))
            marks.append(Mark("pause", entry.t_s, segment_id, end_s))
        elif entry.event in ("resume", "flush", "drop", "end", "gap", "error"):
            marks.append(Mark(entry.event, entry.t_s, segment_id))
    return tuple(marks)


def _pause_end_s(pause: Entry, later: Iterable[Entry], exchange: Exchange | None) -> float | None:
    """What comes first: a resume, the segment's death, or its next sound, for a pause ends by itself."""
    own = pause.segment.segment_id
    sounds = [piece.begin_s for piece in (exchange.pieces if exchange else ()) if piece.begin_s > pause.t_s]
    ends = (
        entry.t_s
        for entry in later
        if (entry.event == "flush" and entry.segment.segment_id > own)
        or (entry.segment.segment_id == own and entry.event in ("resume", "drop"))
        or entry.event == "end"
    )
    return min([*sounds[:1], *[t_s for t_s in [next(ends, None)] if t_s is not None]], default=None)


def _audio_time_s(entry: Entry | None, offset_s: float | None) -> float | None:
    """Where the event's audio is on the axis; without a position, when it was told."""
    if entry is None:
        return None
    audio_ms = entry.number("audio_ms")
    return entry.t_s if audio_ms is None or offset_s is None else min(entry.t_s, audio_ms / 1000 + offset_s)


def _time_s(entry: Entry | None) -> float | None:
    return None if entry is None else entry.t_s


def _between(begin_s: float | None, end_s: float | None) -> float | None:
    """None also where one of both is missing, or came before the other as with speculation."""
    return None if begin_s is None or end_s is None or end_s < begin_s else end_s - begin_s
