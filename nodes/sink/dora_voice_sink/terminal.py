"""The conversation on the terminal: lines while it goes on, and a summary at the end. Pure."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator
from typing import Any

from dora_voice.messages import SPEAKER_RATE_HZ, Segment
from dora_voice_sink.conversation import MOST_SEGMENTS, Event, Heard, Outcome, Wasted
from dora_voice_sink.record import UNSHOWABLE

MOST_LATENCIES = 10_000
COUNTED = ("user turns", "replies", "interrupted", "held and continued", "rejected as no speech", "gaps", "errors")
CLAUSE_END = re.compile(r"""(?:[!?,;:…]|(?<!\d)\.)["'”’)\]]*(?=\s)|[。！？，；：…][”’」』）]*+(?=.)""")
"""Where something follows: a closing quote belongs to what it closes. The point of `1.` ends nothing."""


class Transcript:
    """Turns as they are spoken: the user's when complete, the reply's clause by clause as it is heard."""

    def __init__(self) -> None:
        self._shown: dict[Segment, int] = {}
        self._committed_s: dict[Segment, float] = {}
        self._latencies_ms: list[float] = []
        self._counts: Counter[str] = Counter()
        self._counts_of: dict[Segment, Counter[str]] = {}
        """What a drop takes back."""
        self._wasted_fragments, self._wasted_s = 0, 0.0

    def of(self, t_s: float, outcome: Outcome) -> Iterator[str]:
        """The lines that this outcome brings about."""
        if isinstance(outcome, Event):
            yield from self._of_event(t_s, outcome)
        elif isinstance(outcome, Heard):
            yield from self._of_heard(t_s, outcome)
        elif isinstance(outcome, Wasted):
            self._wasted_fragments += outcome.fragments
            self._wasted_s += outcome.samples / SPEAKER_RATE_HZ

    def _of_event(self, t_s: float, event: Event) -> Iterator[str]:
        values = event.values
        if event.event == "turn" and values["role"] == "user":
            self._count(event.segment, "user turns")
            yield _line(t_s, event.segment, "you", values["text"] or f"({values['error']})")
        elif event.event == "turn":
            self._count(event.segment, "replies")
            if "heard" in values and "error" not in values:
                self._count(event.segment, "interrupted")
            yield from self._show(t_s, event.segment, values.get("heard", values["text"]))
            self._shown.pop(event.segment, None)
        elif event.event == "commit":
            _remember(self._committed_s, event.segment, t_s)
        elif event.event == "flush":
            yield _line(t_s, event.segment, "you", "(interrupts)")
        elif event.event == "resume" and event.segment in self._shown:
            self._count(event.segment, "held and continued")
            yield _line(t_s, event.segment, "robot", "(was held, goes on)")
        elif event.event == "drop" and (counts := self._counts_of.pop(event.segment, None)):
            self._counts -= counts
            if counts["user turns"]:
                yield _line(t_s, event.segment, "you", "(taken back)")
        elif event.event in ("error", "gap"):
            self._counts[f"{event.event}s"] += 1
            detail = values.get("error") or f"{len(values['missing'])} fragments never came"
            yield _line(t_s, event.segment, "!", f"{values['output']}: {detail}")
        elif event.event == "rejected":
            self._count(event.segment, "rejected as no speech")

    def _count(self, segment: Segment, what: str) -> None:
        self._counts[what] += 1
        _remember(self._counts_of, segment, self._counts_of.get(segment, Counter()) + Counter([what]))

    def _of_heard(self, t_s: float, heard: Heard) -> Iterator[str]:
        """The part of the reply that was heard since, up to the end of a clause."""
        committed_s = self._committed_s.pop(heard.segment, None) if heard.text else None
        if committed_s is not None and len(self._latencies_ms) < MOST_LATENCIES:
            self._latencies_ms.append((t_s - committed_s) * 1000)
        end = len(heard.text) if heard.fin else self._clause_end(heard)
        yield from self._show(t_s, heard.segment, heard.text[:end], " —" if heard.is_cut and heard.fin else "")

    def _show(self, t_s: float, segment: Segment, text: str, mark: str = "") -> Iterator[str]:
        """What of `text` has not been shown yet."""
        shown = self._shown.get(segment, 0)
        if fresh := text[shown:].strip():
            yield _line(t_s, segment, "robot", fresh + mark)
        _remember(self._shown, segment, max(len(text), shown))

    def _clause_end(self, heard: Heard) -> int:
        clauses = CLAUSE_END.finditer(heard.reply, self._shown.get(heard.segment, 0), len(heard.text) + 1)
        return max((clause.end() for clause in clauses), default=0)

    def summary(self) -> Iterator[str]:
        yield "summary: " + ", ".join(f"{self._counts[what]} {what}" for what in COUNTED)
        if self._wasted_fragments or self._wasted_s:
            yield f"said too soon and taken back: {self._wasted_fragments} tokens, {self._wasted_s:.1f} s of audio"
        if self._latencies_ms:
            yield (
                "from the commit, when the user's turn was over, to the first words heard: median "
                f"{statistics.median(self._latencies_ms):.0f} ms, longest {max(self._latencies_ms):.0f} ms"
            )


def _remember(values: dict[Segment, Any], segment: Segment, value: Any) -> None:
    values[segment] = value
    if len(values) > MOST_SEGMENTS:
        del values[next(iter(values))]


def _line(t_s: float, segment: Segment, who: str, text: str) -> str:
    session = "" if segment.session_id == "default" else f"{segment.session_id} "
    return UNSHOWABLE.sub(" ", f"{t_s:7.1f} s  {session}{who:>5}  {text}")
