"""The report as one HTML page that needs nothing else.

Every text in it came from speech or a network: all are escaped.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from dora_voice_sink.drawing import row_svg
from dora_voice_sink.palette import DARK, LIGHT
from dora_voice_sink.scene import Panel, Row, clock, duration, question, rows
from dora_voice_sink.timeline import Exchange, Turn

MOST_ROWS = 90
MOST_COLUMNS = 528
ALL_COLUMNS = 45_000
"""Of all rows together; with three waveforms that is some 3 MB."""
LONGEST_TEXT = 2000
COLUMNS: tuple[str, ...] = ("end-of-turn wait", "transcript", "first words", "first audio", "first sound")
"""Latencies, in the order in which they pass. Those that the session has nothing of are left out."""
LEGEND = """\
<div class="legend"><span><i class="u"></i>you, up to the commit</span>\
<span><i class="w"></i>wait for the first sound</span>\
<span><i class="r"></i>heard, a tick for each word</span><span><i class="n"></i>synthesised, never heard</span>\
<span><i class="f"></i>interruption</span><span><i class="h"></i>held by a pause</span></div>
"""
HEAD = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Voice conversation</title>
<style>
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table of turns."""

    t_s: float
    exchange: Exchange
    turn: Turn | None
    is_user: bool


def page(panels: list[Panel], folder: str, remarks: Iterable[str]) -> str:
    exchanges = [exchange for panel in panels for exchange in panel.conversation.exchanges]
    parts = [
        HEAD + _style() + "</style>\n</head>\n<body>\n<main>\n<h1>Voice conversation</h1>\n",
        f'<p class="under">{escape(folder)}</p>\n',
        _figures(panels, exchanges),
        _remarks(remarks),
    ]
    shown = [panel for panel in panels if panel.conversation.exchanges]
    most_rows = max(1, MOST_ROWS // max(1, len(shown)))
    of_panels = [(panel, rows(panel, most_rows)) for panel in shown]
    columns = max(40, min(MOST_COLUMNS, ALL_COLUMNS // max(1, sum(len(of_it) for _, of_it in of_panels))))
    parts += [
        _section(number, panel, of_it, columns, len(panels) > 1) for number, (panel, of_it) in enumerate(of_panels)
    ]
    if not shown:
        parts.append('<section class="empty">Nothing was said in this conversation.</section>\n')
    parts.append(
        "<footer>Times are minutes and seconds since the sink was connected. Made by dora_voice_sink.report from "
        "conversation.jsonl and the sound files beside it.</footer>\n</main>\n</body>\n</html>\n"
    )
    return "".join(parts)


def _style() -> str:
    light, dark = (";".join(f"--{name}:{colour}" for name, colour in palette.items()) for palette in (LIGHT, DARK))
    sheet = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n{sheet}"


def _figures(panels: list[Panel], exchanges: list[Exchange]) -> str:
    waits = [
        wait_s for panel in panels for x in panel.conversation.exchanges if (wait_s := panel.wait_s(x)) is not None
    ]
    sounds = [x.sound_latency_s for x in exchanges if x.sound_latency_s is not None]
    cuts = [x.cut_latency_s for x in exchanges if x.cut_latency_s is not None]
    failures = sum(len(x.errors) for x in exchanges) + sum(panel.conversation.gaps for panel in panels)
    length_s = max((panel.end_s for panel in panels), default=0) - min((panel.begin_s for panel in panels), default=0)
    figures = [
        (duration(length_s), "long", ""),
        *([(str(len(panels)), "sessions", "")] if len(panels) > 1 else []),
        (str(sum(x.user is not None and x.drop_s is None for x in exchanges)), "user turns", ""),
        (str(sum(x.reply is not None and x.drop_s is None for x in exchanges)), "replies", ""),
        (str(sum(x.is_interrupted and x.drop_s is None for x in exchanges)), "interrupted", ""),
        *_median(waits, "end of voice to commit"),
        *_median(sounds, "commit to first sound"),
        *_median(cuts, "flush to cut"),
        *([(str(failures), "errors and gaps", "bad")] if failures else []),
    ]
    cells = "".join(f'<div class="{kind}"><b>{value}</b><span>{name}</span></div>' for value, name, kind in figures)
    return f'<div class="figures">{cells}</div>\n'


def _median(latencies_s: list[float], name: str) -> Iterator[tuple[str, str, str]]:
    if latencies_s:
        longest = f"</span><span>longest {duration(max(latencies_s))}" if len(latencies_s) > 1 else ""
        yield duration(statistics.median(latencies_s)), name + longest, ""


def _remarks(remarks: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(remark)}</li>" for remark in remarks)
    return f'<ul class="remarks">{items}</ul>\n' if items else ""


def _section(number: int, panel: Panel, of_it: list[Row], columns: int, has_others: bool) -> str:
    title = f"<h2><span>Session</span> {escape(panel.conversation.session_id)}</h2>\n" if has_others else ""
    timeline = "".join(_rows(number, panel, of_it, columns))
    return f"<section>\n{title}{LEGEND}{timeline}{_table(number, panel, of_it)}</section>\n"


def _rows(number: int, panel: Panel, of_it: list[Row], columns: int) -> Iterator[str]:
    for index, row in enumerate(of_it):
        if row.skipped_s:
            yield f'<div class="skipped">nothing happened for {duration(row.skipped_s)}</div>\n'
        yield f'<div id="s{number}r{index}">{row_svg(panel, row, columns)}</div>\n'


def _table(number: int, panel: Panel, of_it: list[Row]) -> str:
    lines = _lines(panel)
    shown = [column for column in COLUMNS if any(_latency_s(panel, line, column) is not None for line in lines)]
    wait, after = shown.count(COLUMNS[0]), len(shown) - shown.count(COLUMNS[0])
    group = f'<th class="group" colspan="{after}">after commit</th>' if after else ""
    names = "".join(f'<th class="n">{column}</th>' for column in shown)
    body = "".join(_table_row(number, panel, line, of_it, shown) for line in lines)
    return (
        f'<table>\n<thead><tr><th class="group" colspan="{5 + wait}"></th>{group}</tr>\n'
        f"<tr><th>at</th><th>#</th><th>who</th><th>said</th><th></th>{names}</tr></thead>\n"
        f"<tbody>\n{body}</tbody>\n</table>\n"
    )


def _latency_s(panel: Panel, line: Line, column: str) -> float | None:
    exchange = line.exchange
    of_user = {COLUMNS[0]: panel.wait_s(exchange), COLUMNS[1]: exchange.transcript_latency_s}
    of_reply = (exchange.words_latency_s, exchange.audio_latency_s, exchange.sound_latency_s)
    return (of_user if line.is_user else dict(zip(COLUMNS[2:], of_reply, strict=True))).get(column)


def _lines(panel: Panel) -> list[Line]:
    lines = []
    for exchange in panel.conversation.exchanges:
        if (
            exchange.user
            or exchange.guesses
            or exchange.rejected is not None
            or exchange.start_s is not None
            or exchange.errors
        ):
            lines.append(Line(exchange.begin_s, exchange, exchange.user, True))
        if exchange.reply or exchange.pieces or exchange.fragments:
            times_s = [exchange.first_sound_s, exchange.reply.t_s if exchange.reply else None, exchange.begin_s]
            lines.append(Line(next(t for t in times_s if t is not None), exchange, exchange.reply, False))
    return sorted(lines, key=lambda line: line.t_s)


def _table_row(number: int, panel: Panel, line: Line, of_it: list[Row], shown: list[str]) -> str:
    exchange = line.exchange
    row = next((index for index, row in enumerate(of_it) if row.shows(line.t_s, line.t_s)), None)
    time = clock(line.t_s, is_fine=True)
    at = time if row is None else f'<a href="#s{number}r{row}">{time}</a>'
    who = "you" if line.is_user else "robot"
    latencies_s = [_latency_s(panel, line, column) for column in shown]
    figures = "".join(f'<td class="n">{"" if s is None else duration(s)}</td>' for s in latencies_s)
    badges = "".join(f'<span class="badge {kind}">{escape(text)}</span>' for text, kind in _badges(line))
    return (
        f'<tr class="{who}"><td class="t">{at}</td><td class="k">{exchange.segment_id}</td><td class="who">{who}</td>'
        f'<td class="text" dir="auto">{_text(line)}</td>'
        f"<td>{badges}</td>{figures}</tr>\n"
    )


def _text(line: Line) -> str:
    """What was said; struck out what never happened or wasn't heard."""
    turn = line.turn
    if line.is_user:
        text = escape(_short(question(line.exchange)))
        return f"<s>{text}</s>" if line.exchange.drop_s is not None or turn is None else text
    if turn is None:
        return escape(_short(line.exchange.reply_text)) or "(its text is not in the journal)"
    if line.exchange.drop_s is not None:
        return f"<s>{escape(_short(turn.text))}</s>"
    if turn.heard is None or not turn.text.startswith(turn.heard):
        return escape(_short(turn.text if turn.heard is None else turn.heard))
    return f"{escape(_short(turn.heard))}<s>{escape(_short(turn.text[len(turn.heard) :]))}</s>"


def _badges(line: Line) -> Iterator[tuple[str, str]]:
    exchange = line.exchange
    if exchange.drop_s is not None:
        yield "dropped", ""
    if line.is_user:
        if exchange.rejected is not None:
            yield f"no speech: {exchange.rejected}".removesuffix(": "), ""
        if exchange.continues is not None:
            yield f"continues {exchange.continues}", ""
        if exchange.flush_s is not None:
            yield "interrupts", "alarm"
            if exchange.confirm_latency_s is not None:
                yield f"after {duration(exchange.confirm_latency_s)}", ""
        if exchange.commit_s is None and exchange.drop_s is None and line.turn is None:
            yield "never committed", ""
    elif exchange.is_interrupted:
        yield "interrupted", "alarm"
        if exchange.pieces and exchange.cut_latency_s is not None:
            yield f"cut {duration(exchange.cut_latency_s)} after the flush", ""
        if not exchange.pieces:
            yield "never heard", ""
    told = {turn.error for turn in (exchange.user, exchange.reply) if turn}
    errors = [error for error in exchange.errors if error not in told] if line.is_user else []
    for error in errors + ([line.turn.error] if line.turn and line.turn.error is not None else []):
        yield f"error: {error}", "alarm"


def _short(text: str) -> str:
    return (
        text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} … ({len(text) - LONGEST_TEXT} more characters)"
    )
