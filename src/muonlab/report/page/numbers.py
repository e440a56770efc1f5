"""The numbers behind a figure: as data for the pointer, and as tables for those who read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from muonlab.report.page.markup import characters
from muonlab.report.values import Panel, Series

T = TypeVar("T")

ROWS = 60
"""Rows of a panel's table; longer curves are thinned."""
MOST = 3000
"""Numbers of a figure above which its tables are left out, so that a page of many cells stays small."""


@dataclass(frozen=True)
class PanelNumbers:
    """A panel as a table of text: a header, rows, and what was left out."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str


@dataclass(frozen=True)
class Numbers:
    """All panels of a figure as tables, or how many numbers they would have been."""

    panels: list[PanelNumbers]
    left_out: int = 0


def hover_data(panels: Sequence[Panel]) -> list[dict[str, object]]:
    """Return panels as plain data for a script: what is not finite is None, values have six significant digits."""
    return [
        {
            "x_name": characters(panel.x_name),
            "y_name": characters(panel.y_name),
            "box": _finite(panel.box, 6),
            "x_range": _finite(panel.x_range, 12),
            "y_range": _finite(panel.y_range, 12),
            "x_scale": panel.x_scale,
            "y_scale": panel.y_scale,
            "series": [_series_data(series) for series in panel.series],
        }
        for panel in panels
    ]


def numbers_of(panels: Sequence[Panel]) -> Numbers:
    """Return the tables of a figure, each of at most ``ROWS`` rows; none if they had more than ``MOST`` numbers."""
    count = sum(min(ROWS, len(series.x)) for panel in panels for series in panel.series)
    if count > MOST:
        return Numbers([], left_out=sum(len(series.x) for panel in panels for series in panel.series))
    return Numbers([_panel_numbers(panel) for panel in panels if any(series.x for series in panel.series)])


def _series_data(series: Series) -> dict[str, object]:
    spread = None if series.spread is None else _finite(series.spread, 6)
    return {
        "label": characters(series.label),
        "x": _finite(series.x, 9),
        "y": _finite(series.y, 6),
        "spread": spread,
        "colour": characters(series.colour),
    }


def _finite(values: Sequence[float], digits: int) -> list[float | None]:
    return [_short(float(f"{value:.{digits}g}")) if math.isfinite(value) else None for value in values]


def _short(value: float) -> float:
    """Return whole numbers as such: "3" is shorter than "3.0"."""
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _panel_numbers(panel: Panel) -> PanelNumbers:
    places = sorted({x for series in panel.series for x in series.x})
    longest = max(len(series.x) for series in panel.series)
    title = f"{panel.y_name} against {panel.x_name}"
    if len(places) <= 1.5 * longest:
        kept = _thin(places, ROWS)
        columns = [dict(zip(series.x, _texts(series), strict=True)) for series in panel.series]
        rows = [[_place(x), *(column.get(x, "–") for column in columns)] for x in kept]
        header = [panel.x_name, *(series.label for series in panel.series)]
        return PanelNumbers(title, header, rows, _note(len(kept), len(places)))
    # Curves over places of their own (seconds, say): a row for each point, so that the table is not mostly dashes.
    points = [
        (series.label, _place(x), text)
        for series in panel.series
        for x, text in _thin(list(zip(series.x, _texts(series), strict=True)), max(2, ROWS // len(panel.series)))
    ]
    total = sum(len(series.x) for series in panel.series)
    return PanelNumbers(
        title, ["Curve", panel.x_name, panel.y_name], [list(p) for p in points], _note(len(points), total)
    )


def _texts(series: Series) -> list[str]:
    if series.spread is None:
        return [f"{y:.4g}" for y in series.y]
    return [f"{y:.4g} ± {s:.2g}" for y, s in zip(series.y, series.spread, strict=True)]


def _place(x: float) -> str:
    return f"{x:.0f}" if float(x).is_integer() and abs(x) < 1e15 else f"{x:.4g}"


def _thin(values: Sequence[T], most: int) -> list[T]:
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _note(kept: int, total: int) -> str:
    return "" if kept == total else f"{kept} of {total:,} rows, evenly spaced."
