"""The colours of the report, for light and for dark surroundings."""

from __future__ import annotations

LIGHT = {
    "ground": "#fbfaf7",
    "card": "#ffffff",
    "ink": "#22262b",
    "muted": "#6c737b",
    "faint": "#a9aeb4",
    "line": "#e8e5df",
    "user": "#3a6ea5",
    "reply": "#2b8a74",
    "alarm": "#c64a38",
    "hold": "#b07d1e",
}
DARK = {
    "ground": "#141619",
    "card": "#1b1e22",
    "ink": "#e7e6e2",
    "muted": "#969da5",
    "faint": "#626971",
    "line": "#2c3036",
    "user": "#7fb2e8",
    "reply": "#5fc4ab",
    "alarm": "#f2836f",
    "hold": "#e2b65c",
}
