"""The report as one picture, PNG. Needs matplotlib, which is imported here only, when there is something to draw."""

from __future__ import annotations

import textwrap
import unicodedata
import warnings
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dora_voice_sink.palette import LIGHT
from dora_voice_sink.scene import Panel, Row, clock, duration, gain, question, rows
from dora_voice_sink.timeline import Exchange
from dora_voice_sink.waveform import Peaks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Style = dict[str, Any]
MISSING = 'no report.png: it needs matplotlib. Run: pip install "dora-voice-sink[report]"'
MOST_ROWS = 36
WIDTH_IN = 13.0
DPI = 144
COLUMNS = 800
FONTS = ("Noto Sans", "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Noto Sans Arabic")
"""Those that are installed are used, each for the characters that the ones before it lack."""
LETTER = 0.6
"""A letter's width, as a part of its height. Chinese and Japanese ones are as wide as high."""

LANES = (("user", 1.0), ("spoken", 0.85), ("replied", 1.0), ("reply", 1.0), ("speaker", 0.8))
"""From the top, with their heights in units of UNIT_IN."""
WAIT: Style = {"linewidth": 0.8, "linestyle": (0, (2, 2))}
CUT: Style = {"marker": "x", "markersize": 5, "markeredgewidth": 1.6}
HELD: Style = {"alpha": 0.18, "linewidth": 0}
UNIT_IN = 0.44
ROW_GAP_IN = 0.32


def write(panels: list[Panel], path: Path) -> str:
    """Draws them. Returns what to tell the user. Raises OSError."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.font_manager import fontManager
    except ImportError:
        # One of another conversation would be taken for this one's.
        path.unlink(missing_ok=True)
        return MISSING
    import matplotlib

    installed = {font.name for font in fontManager.ttflist}
    with matplotlib.rc_context({"font.family": [font for font in FONTS if font in installed], "font.size": 8}):
        figure = Figure(facecolor=LIGHT["ground"], dpi=DPI)
        _draw(figure, [panel for panel in panels if panel.conversation.exchanges])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            figure.savefig(path)
    return f"wrote {path}"


def _draw(figure: Figure, panels: list[Panel]) -> None:
    shown = panels[:MOST_ROWS]
    each = max(1, MOST_ROWS // max(1, len(shown)))
    strips = [(panel, row, index == 0) for panel in shown for index, row in enumerate(rows(panel, each))]
    heights_in = [_height_in(panel) + (0.3 if is_first and len(panels) > 1 else 0) for panel, _, is_first in strips]
    total_in = 0.75 + sum(heights_in) + ROW_GAP_IN * len(strips) + 0.15
    figure.set_size_inches(WIDTH_IN, total_in)
    more = f", the first {len(shown)} of {len(panels)} sessions" if len(shown) < len(panels) else ""
    title = "Voice conversation" + more if panels else "Voice conversation: nothing was said"
    figure.text(0.02, 1 - 0.36 / total_in, title, size=14, weight="bold", color=LIGHT["ink"], va="center")
    _legend(figure, 1 - 0.36 / total_in)
    top_in = total_in - 0.75
    for (panel, row, is_first), height_in in zip(strips, heights_in, strict=True):
        own_in = _height_in(panel)
        if is_first and len(panels) > 1:
            name = f"Session {panel.conversation.session_id}"[:100]
            y = (top_in - 0.1) / total_in
            figure.text(0.02, y, name, size=9.5, weight="bold", color=LIGHT["ink"], parse_math=False)
        bottom_in = top_in - height_in
        axes = figure.add_axes((0.075, bottom_in / total_in, 0.905, own_in / total_in))
        _draw_row(axes, panel, row)
        top_in = bottom_in - ROW_GAP_IN


def _legend(figure: Figure, y: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    marks = {
        "you": _swatch("user"),
        "robot": _swatch("reply"),
        "taken back, or never heard": _swatch("faint"),
        "wait for the first sound": Line2D([], [], color=LIGHT["muted"], **WAIT),
        "interrupted": Line2D([], [], color=LIGHT["alarm"], linewidth=0, **CUT),
        "held": Patch(color=LIGHT["hold"], **HELD),
    }
    figure.legend(
        list(marks.values()),
        list(marks),
        loc="center right",
        bbox_to_anchor=(0.985, y),
        ncols=len(marks),
        frameon=False,
        handlelength=1.4,
        columnspacing=1.6,
        labelcolor=LIGHT["muted"],
    )


def _swatch(colour: str) -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=LIGHT[colour], linewidth=4, solid_capstyle="butt")


def _tops(panel: Panel) -> dict[str, tuple[float, float]]:
    """Of each lane that this session has: its top and height."""
    there = {"user": panel.user, "reply": panel.heard or panel.unheard, "speaker": panel.speaker}
    tops, top = {}, 0.0
    for name, height in LANES:
        if there.get(name, True):
            tops[name] = (top, height)
            top += height
    return tops


def _height_in(panel: Panel) -> float:
    return sum(height for _, height in _tops(panel).values()) * UNIT_IN


def _draw_row(axes: Axes, panel: Panel, row: Row) -> None:
    tops = _tops(panel)
    bottom = sum(height for _, height in tops.values())
    axes.set(xlim=(row.begin_s, row.end_s), ylim=(bottom, 0), yticks=[], facecolor=LIGHT["card"])
    axes.set_xticks(row.ticks_s(), [clock(t_s) for t_s in row.ticks_s()])
    axes.tick_params(length=0, labelcolor=LIGHT["muted"], labelsize=7.5, pad=3, top=False)
    axes.grid(axis="x", color=LIGHT["line"], linewidth=0.7)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set(color=LIGHT["line"], linewidth=0.8)
    names = {"user": "you", "spoken": "utterance", "replied": "played", "reply": "synthesised", "speaker": "speaker"}
    for name, (top, height) in tops.items():
        y = top + (height / 2 if name in ("user", "reply", "speaker") else 0.25)
        axes.text(
            -0.008, y, names[name], transform=axes.get_yaxis_transform(), ha="right", va="center", color=LIGHT["muted"]
        )
    _draw_sounds(axes, panel, row, tops)
    _draw_pauses(axes, panel, row, tops["replied"][0], bottom)
    exchanges = panel.conversation.exchanges
    _draw_spoken(axes, exchanges, row, tops["spoken"][0])
    _draw_replied(axes, exchanges, row, tops["replied"][0])
    for mark in panel.conversation.marks:
        if mark.kind in ("flush", "error") and row.shows(mark.t_s, mark.t_s):
            axes.axvline(mark.t_s, color=LIGHT["alarm"], linewidth=0.9)


def _draw_sounds(axes: Axes, panel: Panel, row: Row, tops: dict[str, tuple[float, float]]) -> None:
    if panel.user:
        _draw_wave(axes, [panel.user], gain([panel.user]), row, tops["user"], LIGHT["user"])
    if "reply" in tops:
        height = gain([*panel.heard, *panel.unheard])
        _draw_wave(axes, panel.unheard, height, row, tops["reply"], "#d3d6d9")
        _draw_wave(axes, panel.heard, height, row, tops["reply"], LIGHT["reply"])
    if "speaker" in tops:
        _draw_wave(axes, panel.speaker, gain(panel.speaker), row, tops["speaker"], LIGHT["muted"])


def _draw_wave(
    axes: Axes, sounds: Iterable[Peaks], height: float, row: Row, lane: tuple[float, float], colour: str
) -> None:
    from matplotlib.collections import LineCollection

    middle, half = lane[0] + lane[1] / 2, lane[1] / 2 * 0.86
    axes.axhline(middle, color=LIGHT["line"], linewidth=0.7)
    lines: list[NDArray[np.floating]] = [np.zeros((0, 2, 2))]
    for peaks in sounds:
        if row.shows(peaks.begin_s, peaks.end_s):
            filled, low, high = peaks.columns(row.begin_s, row.end_s, COLUMNS)
            times_s = row.begin_s + (filled + 0.5) / COLUMNS * (row.end_s - row.begin_s)
            ends = [np.column_stack((times_s, middle - edge * height * half)) for edge in (high, low)]
            lines.append(np.stack(ends, axis=1))
    axes.add_collection(LineCollection(list(np.concatenate(lines)), colors=colour, linewidths=0.8))


def _draw_pauses(axes: Axes, panel: Panel, row: Row, top: float, bottom: float) -> None:
    for mark in panel.conversation.marks:
        if mark.kind == "pause" and row.shows(mark.t_s, mark.end_s or mark.t_s):
            end_s = mark.end_s if mark.end_s is not None else mark.t_s + 0.02
            axes.fill_betweenx([top + 0.1, bottom], mark.t_s, end_s, color=LIGHT["hold"], **HELD)


def _draw_spoken(axes: Axes, exchanges: Iterable[Exchange], row: Row, top: float) -> None:
    shown = [x for x in exchanges if row.shows(x.begin_s, x.spoken_until_s or x.begin_s)]
    for exchange, next_s in _with_next(shown, [x.begin_s for x in shown], row):
        is_gone = exchange.drop_s is not None or exchange.rejected is not None
        end_s = exchange.spoken_until_s
        if end_s is not None:
            _bar(axes, exchange.begin_s, end_s, top + 0.22, LIGHT["faint" if is_gone else "user"])
        text = f"{exchange.segment_id}  {question(exchange)}"
        _caption(axes, exchange.begin_s, next_s, top + 0.36, text, row, LIGHT["muted" if is_gone else "ink"])


def _draw_replied(axes: Axes, exchanges: Iterable[Exchange], row: Row, top: float) -> None:
    y = top + 0.34
    played = [x for x in exchanges if x.pieces]
    shown = sorted(
        (x for x in played if row.shows(x.pieces[0].begin_s, x.pieces[-1].end_s)), key=lambda x: x.pieces[0].begin_s
    )
    for exchange in played:
        latency_s, commit_s = exchange.sound_latency_s, exchange.commit_s
        if latency_s is not None and commit_s is not None and row.shows(commit_s, commit_s + latency_s):
            axes.plot([commit_s, commit_s + latency_s], [y, y], color=LIGHT["muted"], **WAIT)
            middle_s = commit_s + latency_s / 2
            if latency_s > 0.045 * (row.end_s - row.begin_s) and row.begin_s < middle_s < row.end_s:
                axes.text(
                    middle_s, y - 0.06, duration(latency_s), ha="center", va="bottom", color=LIGHT["muted"], size=7.5
                )
    for exchange, next_s in _with_next(shown, [x.pieces[0].begin_s for x in shown], row):
        for piece in exchange.pieces:
            _bar(axes, piece.begin_s, piece.end_s, y, LIGHT["reply"])
        last_s = exchange.pieces[-1].end_s
        if exchange.cut_s is not None and row.shows(last_s, last_s):
            axes.plot([last_s], [y], color=LIGHT["alarm"], **CUT)
        heard = exchange.reply.heard if exchange.reply else None
        if exchange.reply_text and exchange.pieces[0].begin_s >= row.begin_s:
            text = exchange.reply_text if heard is None else f"{heard} —"
            _caption(axes, exchange.pieces[0].begin_s, next_s, y + 0.14, text, row, LIGHT["ink"])


def _with_next(shown: list[Exchange], begins_s: list[float], row: Row) -> Iterable[tuple[Exchange, float]]:
    return zip(shown, [*(after for _, after in pairwise(begins_s)), row.end_s], strict=False)


def _bar(axes: Axes, begin_s: float, end_s: float, y: float, colour: str) -> None:
    axes.plot([begin_s, end_s], [y, y], color=colour, linewidth=4, solid_capstyle="butt")


def _caption(axes: Axes, begin_s: float, next_s: float, y: float, text: str, row: Row, colour: str) -> None:
    """Two lines at most, as wide as there is room for."""
    begin_s = max(begin_s, row.begin_s)
    width_pt = (next_s - begin_s) / (row.end_s - row.begin_s) * WIDTH_IN * 0.905 * 72 - 6
    is_wide = any(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    letters = int(width_pt / (7.5 * (1 if is_wide else LETTER)))
    if letters >= 6:
        lines = textwrap.wrap(text, letters, max_lines=2, placeholder=" …")
        axes.text(begin_s, y, "\n".join(lines), va="top", size=7.5, color=colour, clip_on=True, parse_math=False)
