"""The numbers of a figure, as data for the pointer and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from muonlab.report.values import Panel, Series

T = TypeVar("T")

ROWS = 60
"""Most rows of a panel's table; longer curves are thinned."""
MOST_NUMBERS = 3000
"""A figure with more numbers has no tables, so that a page of many cells stays small."""


@dataclass(frozen=True)
class PanelTable:
    """A panel as a table of text; the note says what was left out."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str


@dataclass(frozen=True)
class NumberTables:
    """All panels of a figure as tables, or the number of values if they are too many."""

    panels: list[PanelTable]
    left_out: int = 0


def hover_data(panels: Sequence[Panel]) -> list[dict[str, object]]:
    """Return panels as data for the script, with six significant digits."""
    return [
        vars(panel)
        | {
            "box": _rounded(panel.box, 6),
            "x_range": _rounded(panel.x_range, 12),
            "y_range": _rounded(panel.y_range, 12),
            "series": [_series_data(series) for series in panel.series],
        }
        for panel in panels
    ]


def number_tables(panels: Sequence[Panel]) -> NumberTables:
    """Return the tables of a figure, each with at most ``ROWS`` rows; none above ``MOST_NUMBERS`` values."""
    count = sum(min(ROWS, len(series.x)) for panel in panels for series in panel.series)
    if count > MOST_NUMBERS:
        return NumberTables([], left_out=sum(len(series.x) for panel in panels for series in panel.series))
    return NumberTables([_panel_table(panel) for panel in panels if any(series.x for series in panel.series)])


def _series_data(series: Series) -> dict[str, object]:
    std = None if series.std is None else _rounded(series.std, 6)
    return vars(series) | {"x": _rounded(series.x, 9), "y": _rounded(series.y, 6), "std": std}


def _rounded(values: Sequence[float], digits: int) -> list[float]:
    return [_short(float(f"{value:.{digits}g}")) for value in values]


def _short(value: float) -> float:
    """Return whole numbers as int: "3" is shorter than "3.0" in a page."""
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _panel_table(panel: Panel) -> PanelTable:
    positions = sorted({x for series in panel.series for x in series.x})
    longest = max(len(series.x) for series in panel.series)
    title = f"{panel.y_name} against {panel.x_name}"
    if len(positions) <= 1.5 * longest:
        kept = _thin(positions, ROWS)
        columns = [dict(zip(series.x, _texts(series), strict=True)) for series in panel.series]
        rows = [[_position(x), *(column.get(x, "–") for column in columns)] for x in kept]
        header = [panel.x_name, *(series.label for series in panel.series)]
        return PanelTable(title, header, rows, _note(len(kept), len(positions)))
    # Curves at different positions, such as seconds: one row per point, else the table would be mostly dashes.
    points = [
        (series.label, _position(x), text)
        for series in panel.series
        for x, text in _thin(list(zip(series.x, _texts(series), strict=True)), max(2, ROWS // len(panel.series)))
    ]
    total = sum(len(series.x) for series in panel.series)
    return PanelTable(
        title, ["Curve", panel.x_name, panel.y_name], [list(p) for p in points], _note(len(points), total)
    )


def _texts(series: Series) -> list[str]:
    if series.std is None:
        return [f"{y:.4g}" for y in series.y]
    return [f"{y:.4g} ± {s:.2g}" for y, s in zip(series.y, series.std, strict=True)]


def _position(x: float) -> str:
    return f"{x:.0f}" if float(x).is_integer() and abs(x) < 1e15 else f"{x:.4g}"


def _thin(values: Sequence[T], most: int) -> list[T]:
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _note(kept: int, total: int) -> str:
    return "" if kept == total else f"{kept} of {total:,} rows, evenly spaced."
