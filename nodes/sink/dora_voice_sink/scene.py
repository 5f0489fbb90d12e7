"""What there is to draw of each session: its timeline, its sounds on the same axis, the rows they are set in. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dora_voice_sink.timeline import Conversation, Exchange
from dora_voice_sink.waveform import Peaks

SHORT_S = 40
"""So much fits into one row."""
ROWS_S = (30, 60, 120, 300, 600, 1200, 3600)
STEPS_S = (0.5, 1, 2, 5, 10, 30, 60, 300, 600, 3600)
MOST_TICKS = 20


@dataclass(frozen=True, slots=True)
class Panel:
    """One session with its sounds. `waits_s`: by segment, from the end of the voice to `commit`."""

    conversation: Conversation
    user: Peaks | None = None
    heard: tuple[Peaks, ...] = ()
    unheard: tuple[Peaks, ...] = ()
    speaker: tuple[Peaks, ...] = ()
    waits_s: dict[int, float] | None = None

    @property
    def begin_s(self) -> float:
        return min(self.conversation.begin_s, self.user.begin_s if self.user else math.inf)

    @property
    def end_s(self) -> float:
        return max(self.conversation.end_s, self.user.end_s if self.user else -math.inf)

    def wait_s(self, exchange: Exchange) -> float | None:
        return (self.waits_s or {}).get(exchange.segment_id)


@dataclass(frozen=True, slots=True)
class Row:
    """A stretch of the time axis, drawn as one row. Before it `skipped_s` are left out in which nothing happened."""

    begin_s: float
    end_s: float
    skipped_s: float = 0.0

    def shows(self, begin_s: float, end_s: float) -> bool:
        return begin_s < self.end_s and end_s >= self.begin_s

    def ticks_s(self) -> list[float]:
        duration_s = self.end_s - self.begin_s
        step_s = next((step for step in STEPS_S if duration_s / step <= MOST_TICKS), duration_s / MOST_TICKS)
        return [number * step_s for number in range(math.ceil(self.begin_s / step_s), int(self.end_s / step_s) + 1)]


def rows(panel: Panel, most: int) -> list[Row]:
    """At most `most` rows of equal length, without those in which nothing happened."""
    begin_s, end_s = math.floor(panel.begin_s), max(panel.end_s, panel.begin_s + 5)
    if end_s - begin_s <= SHORT_S:
        return [Row(begin_s, math.ceil(end_s))]
    row_s = next((row_s for row_s in ROWS_S if (end_s - begin_s) / row_s <= most), math.ceil((end_s - begin_s) / most))
    count = math.ceil((end_s - begin_s) / row_s)
    busy = sorted({number for span in _busy(panel.conversation) for number in _numbers(*span, begin_s, row_s, count)})
    found, before = [], -1
    for number in busy or [0]:
        first_s = begin_s + number * row_s
        found.append(Row(first_s, first_s + row_s, (number - before - 1) * row_s))
        before = number
    return found


def _busy(conversation: Conversation) -> Iterator[tuple[float, float]]:
    for exchange in conversation.exchanges:
        yield from exchange.spans
    yield from ((mark.t_s, mark.end_s or mark.t_s) for mark in conversation.marks)


def _numbers(begin_s: float, end_s: float, origin_s: float, row_s: float, count: int) -> Iterable[int]:
    first = int((begin_s - origin_s) // row_s)
    return range(max(0, first), min(count - 1, int((end_s - origin_s) // row_s)) + 1)


def gain(sounds: Iterable[Peaks]) -> float:
    """Makes the loudest of these as high as their lane, and noise no louder than eight times."""
    loudest = max((float(peaks.loudness.max(initial=0.0)) for peaks in sounds), default=0.0)
    return min(8.0, 1 / loudest) if loudest else 1.0


def clock(t_s: float, is_fine: bool = False) -> str:
    """`1:02:03`, `2:03`, and tenths where they aren't zero, or always."""
    tenths = round(abs(t_s) * 10)
    minutes, seconds = divmod(tenths // 10, 60)
    hours, minutes = divmod(minutes, 60)
    whole = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
    return ("−" if t_s < 0 and tenths else "") + whole + (f".{tenths % 10}" if is_fine or tenths % 10 else "")


def duration(seconds: float) -> str:
    """`340 ms`, `2.1 s`, `3 min 20 s`."""
    if round(seconds * 1000) < 1000:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def question(exchange: Exchange) -> str:
    """The transcript, or the last guess where it never came to one."""
    if exchange.user:
        return exchange.user.text
    return exchange.guesses[-1].text if exchange.guesses else ""
