"""One row of a session's timeline as inline SVG. Colours are those of the page's style sheet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TypeVar

from dora_voice_sink.scene import Panel, Row, clock, duration, gain, question
from dora_voice_sink.timeline import Exchange, Mark
from dora_voice_sink.waveform import Peaks

T = TypeVar("T")

WIDTH = 1140
GUTTER = 82
PLOT = WIDTH - GUTTER - 6
AXIS = 20
WAVE = 52
BAR = 16
CAPTION = 30
GUESSES = 16
WRITTEN = 4
GAP = 18
SILENT = 0.004
LONGEST_CAPTION = 300
LONGEST_TOKEN = 80
LABELLED = {"pause": "pause", "resume": "resume", "flush": "interrupts", "drop": "drop", "end": "end", "error": "error"}
"""Marks that have a word beside them; a gap has only its line."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Where each lane begins, from the top; None where the session has nothing of it."""

    user: int | None
    spoken: int
    guesses: int | None
    written: int | None
    replied: int
    reply: int | None
    speaker: int | None
    height: int


@dataclass(frozen=True, slots=True)
class Scale:
    row: Row

    def x(self, t_s: float) -> float:
        part = (t_s - self.row.begin_s) / (self.row.end_s - self.row.begin_s)
        return GUTTER + PLOT * min(1.0, max(0.0, part))


def lanes(panel: Panel) -> Lanes:
    exchanges = panel.conversation.exchanges
    there = {
        "user": WAVE if panel.user else 0,
        "spoken": BAR + CAPTION,
        "guesses": GUESSES if any(exchange.guesses for exchange in exchanges) else 0,
        "written": GAP + WRITTEN if any(exchange.fragments for exchange in exchanges) else 0,
        "replied": GAP + BAR + CAPTION,
        "reply": WAVE if panel.heard or panel.unheard else 0,
        "speaker": WAVE if panel.speaker else 0,
    }
    tops, top = {}, AXIS
    for name, height in there.items():
        tops[name] = top if height else None
        top += height
    return Lanes(**tops, height=top + 4)


def row_svg(panel: Panel, row: Row, columns: int) -> str:
    """`columns`: pairs of lowest and highest sample that a waveform may have."""
    scale, places = Scale(row), lanes(panel)
    shown = [exchange for exchange in panel.conversation.exchanges if any(row.shows(*span) for span in exchange.spans)]
    name = f"Timeline from {clock(row.begin_s)} to {clock(row.end_s)}"
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {places.height}" role="img" aria-label="{name}">',
        *_axis(row, scale, places),
        *_pauses(panel.conversation.marks, scale, places),
        *_waves(panel, scale, places, columns),
        *_marks(panel.conversation.marks, scale, places),
        *_spoken(shown, scale, places),
        *_guesses(shown, scale, places),
        *_written(shown, scale, places),
        *_replied(shown, scale, places),
        "</svg>",
    ]
    return "".join(parts)


def _axis(row: Row, scale: Scale, places: Lanes) -> Iterator[str]:
    for t_s in row.ticks_s():
        x = scale.x(t_s)
        anchor = "end" if x > WIDTH - 24 else "middle"
        yield f'<path class="grid" d="M{_number(x)} {AXIS - 2}V{places.height}"/>'
        yield f'<text x="{_number(x)}" y="12" text-anchor="{anchor}">{clock(t_s)}</text>'
    names = (
        (places.user, WAVE / 2, "you"),
        (places.spoken, 12, "utterance"),
        (places.guesses, 10, "hypotheses"),
        (places.written, GAP + 3, "written"),
        (places.replied, GAP + 12, "played"),
        (places.reply, WAVE / 2, "synthesised"),
        (places.speaker, WAVE / 2, "speaker"),
    )
    for top, down, name in names:
        if top is not None:
            yield f'<text class="lane" x="0" y="{_number(top + down + 3)}">{name}</text>'


def _waves(panel: Panel, scale: Scale, places: Lanes, columns: int) -> Iterator[str]:
    if panel.user and places.user is not None:
        yield _wave([panel.user], gain([panel.user]), "user", places.user, scale, columns)
    if places.reply is not None:
        height = gain([*panel.heard, *panel.unheard])
        yield _wave(panel.unheard, height, "unheard", places.reply, scale, columns)
        yield _wave(panel.heard, height, "reply", places.reply, scale, columns)
    if places.speaker is not None:
        yield _wave(panel.speaker, gain(panel.speaker), "speaker", places.speaker, scale, columns)


def _wave(sounds: Iterable[Peaks], height: float, kind: str, top: int, scale: Scale, columns: int) -> str:
    row, middle, half = scale.row, top + WAVE / 2, WAVE / 2 - 4
    d = []
    for peaks in sounds:
        if not row.shows(peaks.begin_s, peaks.end_s):
            continue
        for column, low, high in zip(*peaks.columns(row.begin_s, row.end_s, columns), strict=True):
            if high - low > SILENT:
                x = GUTTER + PLOT * (column + 0.5) / columns
                d.append(
                    f"M{_number(x)} {_number(middle - high * height * half)}V{_number(middle - low * height * half)}"
                )
    return f'<path class="rest" d="M{GUTTER} {middle}h{PLOT}"/><path class="wave {kind}" d="{"".join(d)}"/>'


def _spoken(shown: list[Exchange], scale: Scale, places: Lanes) -> Iterator[str]:
    """The utterances: a bar from the first sample to the decision, with the transcript below."""
    for exchange, next_x in _with_next(shown, lambda exchange: exchange.begin_s, scale):
        end_s = exchange.spoken_until_s
        x, end = scale.x(exchange.begin_s), scale.x(exchange.begin_s if end_s is None else end_s)
        gone = "gone" if exchange.drop_s is not None or exchange.rejected is not None else ""
        title = f"segment {exchange.segment_id}, from {clock(exchange.begin_s)}"
        title += "" if exchange.commit_s is None else f", committed at {clock(exchange.commit_s)}"
        title += "" if exchange.drop_s is None else f", dropped at {clock(exchange.drop_s)}"
        if end_s is not None:
            yield _bar(x, end, places.spoken + 6, f"user {gone}", title)
        if exchange.commit_s is not None and scale.row.shows(exchange.commit_s, exchange.commit_s):
            at = f'cx="{_number(end)}" cy="{places.spoken + 9}" r="4"'
            yield f'<circle class="commit" {at}><title>commit</title></circle>'
        if next_x - x > 24:
            text = (
                f"{exchange.segment_id}  "
                + question(exchange)
                + (" (no speech)" if exchange.rejected is not None else "")
            )
            yield _caption(x, next_x, places.spoken + BAR, text, gone)


def _guesses(shown: list[Exchange], scale: Scale, places: Lanes) -> Iterator[str]:
    if places.guesses is None:
        return
    guesses = [guess for exchange in shown for guess in exchange.guesses if scale.row.shows(guess.t_s, guess.t_s)]
    guesses.sort(key=lambda guess: guess.t_s)
    y = places.guesses + 8
    for guess, next_x in _with_next(guesses, lambda guess: guess.t_s, scale):
        x = scale.x(guess.t_s)
        d = f"M{_number(x)} {y - 4}l4 4l-4 4l-4 -4z"
        title = f"{clock(guess.t_s)} {guess.text[:LONGEST_CAPTION]}"
        yield f'<path class="guess" d="{d}"><title>{escape(title)}</title></path>'
        if next_x - x > 60:
            yield _caption(x + 8, next_x, places.guesses, guess.text, "one")


def _written(shown: list[Exchange], scale: Scale, places: Lanes) -> Iterator[str]:
    """A tick for each fragment of a reply; those that can't be told apart are one."""
    if places.written is None:
        return
    y = places.written + GAP - 5
    for exchange in shown:
        ticks: list[tuple[float, str]] = []
        for fragment in exchange.fragments:
            x = scale.x(fragment.t_s)
            if not scale.row.shows(fragment.t_s, fragment.t_s):
                continue
            if ticks and x - ticks[-1][0] < 3:
                ticks[-1] = (ticks[-1][0], ticks[-1][1] + fragment.text)
            else:
                ticks.append((x, fragment.text))
        for x, text in ticks:
            yield f'<path class="token" d="M{_number(x)} {y}v9"><title>{escape(text[:LONGEST_TOKEN])}</title></path>'


def _replied(shown: list[Exchange], scale: Scale, places: Lanes) -> Iterator[str]:
    """The wait after `commit`, what was played of the reply, a tick for each word, and the text below."""
    y = places.replied + GAP
    spoken = sorted(
        (exchange for exchange in shown if exchange.pieces), key=lambda exchange: exchange.pieces[0].begin_s
    )
    for exchange, next_x in _with_next(spoken, lambda exchange: exchange.pieces[0].begin_s, scale):
        yield from _wait(exchange, scale, y + 9)
        for piece in exchange.pieces:
            if scale.row.shows(piece.begin_s, piece.end_s):
                title = (
                    f"reply {exchange.segment_id}, {duration(piece.end_s - piece.begin_s)} from {clock(piece.begin_s)}"
                )
                yield _bar(scale.x(piece.begin_s), scale.x(piece.end_s), y + 6, "reply", title)
        yield _word_ticks(exchange, scale, y + 7)
        last_s = exchange.pieces[-1].end_s
        if exchange.cut_s is not None and scale.row.shows(last_s, last_s):
            x = scale.x(last_s)
            yield f'<path class="cut" d="M{_number(x - 4)} {y + 5}l8 8m0 -8l-8 8"><title>interrupted</title></path>'
        if exchange.reply_text:
            x = scale.x(exchange.pieces[0].begin_s)
            yield _caption(x, next_x, y + BAR, *_of_row(exchange, scale.row))


def _word_ticks(exchange: Exchange, scale: Scale, y: float) -> str:
    """As many as can be told apart."""
    d, free_x = [], 0.0
    for t_s in exchange.word_times_s:
        x = scale.x(t_s)
        if scale.row.shows(t_s, t_s) and x >= free_x:
            d.append(f"M{_number(x)} {y}v4")
            free_x = x + 4
    return f'<path class="word" d="{"".join(d)}"/>'


def _wait(exchange: Exchange, scale: Scale, y: float) -> Iterator[str]:
    begin_s, wait_s = exchange.commit_s, exchange.sound_latency_s
    if begin_s is None or not wait_s or not scale.row.shows(begin_s, begin_s + wait_s):
        return
    x, end = scale.x(begin_s), scale.x(begin_s + wait_s)
    yield f'<path class="wait" d="M{_number(x)} {_number(y - 3)}v6m0 -3H{_number(end)}"/>'
    if end - x > 44:
        yield f'<text class="wait" x="{_number((x + end) / 2)}" y="{_number(y - 5)}">{duration(wait_s)}</text>'


def _of_row(exchange: Exchange, row: Row) -> tuple[str, str, str]:
    """The words that were heard in this row, and with its last word the part that wasn't heard."""
    text, heard = exchange.reply_text, exchange.reply.heard if exchange.reply else None
    heard = text if heard is None else heard
    rest = text[len(heard) :] if text.startswith(heard) else ""
    if exchange.pieces[0].begin_s >= row.begin_s:
        return heard, "", rest
    words = heard.split()
    first = sum(t_s < row.begin_s for t_s in exchange.word_times_s)
    return "… " + " ".join(words[first:]), "", rest


def _pauses(marks: Iterable[Mark], scale: Scale, places: Lanes) -> Iterator[str]:
    for mark in marks:
        end_s = mark.end_s if mark.end_s is not None else mark.t_s
        if mark.kind == "pause" and scale.row.shows(mark.t_s, end_s):
            x, end = scale.x(mark.t_s), scale.x(end_s)
            y, height = places.replied + GAP, places.height - places.replied - GAP
            title = f"segment {mark.segment_id} held for {duration(end_s - mark.t_s)}"
            yield (
                f'<rect class="held" x="{_number(x)}" y="{y}" width="{_number(max(1, end - x))}" height="{height}">'
                f"<title>{title}</title></rect>"
            )


def _marks(marks: Iterable[Mark], scale: Scale, places: Lanes) -> Iterator[str]:
    """A line each, and its word where the one before leaves room."""
    free_x = 0.0
    for mark in marks:
        if not scale.row.shows(mark.t_s, mark.t_s):
            continue
        x, word = scale.x(mark.t_s), LABELLED.get(mark.kind, "")
        title = f"{mark.kind} {mark.segment_id} at {clock(mark.t_s)}"
        d = f"M{_number(x)} {AXIS - 2}V{places.height}"
        yield f'<path class="mark {escape(mark.kind)}" d="{d}"><title>{title}</title></path>'
        if word and x > free_x:
            anchor = "end" if x > WIDTH - 70 else "start"
            dx = -4 if anchor == "end" else 4
            yield (
                f'<text class="mark {escape(mark.kind)}" x="{_number(x + dx)}" y="{places.replied + 9}" '
                f'text-anchor="{anchor}">{word}</text>'
            )
            free_x = x + 7 * len(word) + 8


def _with_next(things: list[T], begin_s: Callable[[T], float], scale: Scale) -> Iterator[tuple[T, float]]:
    """Each with the place where the next one begins."""
    ends = [scale.x(begin_s(after)) - 6 for _, after in pairwise(things)] + [float(GUTTER + PLOT)]
    yield from zip(things, ends, strict=False)


def _bar(x: float, end: float, y: float, kind: str, title: str) -> str:
    place = f'x="{_number(x)}" y="{_number(y)}" width="{_number(max(3, end - x))}"'
    return f'<rect class="bar {kind}" {place} height="6" rx="3"><title>{escape(title)}</title></rect>'


def _caption(x: float, end: float, y: float, text: str, kind: str = "", rest: str = "") -> str:
    """Text that the browser cuts to its place; `rest` is what nobody heard."""
    shown, rest = text[:LONGEST_CAPTION], rest[: LONGEST_CAPTION - min(LONGEST_CAPTION, len(text))]
    unheard = f"<s>{escape(rest)}</s>" if rest else ""
    height = GUESSES if kind == "one" else CAPTION
    return (
        f'<foreignObject x="{_number(x)}" y="{_number(y)}" width="{_number(max(1, end - x))}" height="{height}">'
        f'<div class="caption {kind}" dir="auto">{escape(shown)}{unheard}</div></foreignObject>'
    )


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
