"""The theory at work: what was measured on problems of known constants, beside the bounds that hold for it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import Traced
from muonlab.report.figures.plain_svg import INK
from muonlab.report.figures.style import LINES, OTHERS, looks
from muonlab.report.values import Figure, Panel

Row = Mapping[str, Any]
MOST_LINES = 120
X_NAME = "average nuclear norm of ∇f"
LONG = drawing.HUGE**2
"""Ends of a strip's vertical scale: far beyond what is drawn."""


@dataclass
class _Line:
    """A method on a problem: a line of the plot."""

    problem: str
    method: str
    measured: float
    bounds: list[tuple[str, float]]
    place: float = 0.0


def bounds_figure(
    rows: Sequence[Row], *, name: str = "bounds", title: str = "Measured gradient norms and their bounds"
) -> Figure | None:
    """Return a dot for each measured average and a mark for each of its bounds, on a log axis, grouped by problem.

    Args:
        rows: with ``problem``, ``method``, ``measured``, ``bound`` (a number) and ``name`` of the bound; those of the
            same problem and method share a line, and what was measured with other seeds is averaged.
        name: of the figure.
        title: of the figure.
    """
    found = _lines(rows)
    every = [line for line in found if math.isfinite(line.measured)]
    lines = every[:MOST_LINES]
    if not lines:
        return None
    problems = list(dict.fromkeys(line.problem for line in lines))
    heads = _placed(lines, problems)
    how = looks(dict.fromkeys(line.method for line in lines))
    marks = _marks([bound for line in lines for bound, _ in line.bounds])
    with drawing.sheet(0.75 + 0.2 * (len(lines) + len(problems))) as canvas:
        axes = canvas.subplots()
        drawing.name_axes(axes, X_NAME, "", x_scale="log")
        for line in lines:
            _draw(axes, line, how[line.method].colour, marks)
        _tick_words(axes, lines, heads)
        entries: list[tuple[str, Artist]] = [("measured", _key("o", INK))]
        drawing.legend(canvas, entries + [(bound, _key(*mark)) for bound, mark in marks.items()])
        traced = Traced(axes, X_NAME, "", [])
        caption = (
            "Dots are measured averages over runs, in the colour of their method; the other marks are bounds on them, "
            "and each should be right of its dot."
        )
        if len(every) > len(lines):
            caption += f" The first {len(lines)} of {len(every)} lines are drawn."
        if len(found) > len(every):
            caption += f" {len(found) - len(every)} without a positive finite average are left out."
        figure = drawing.finish(canvas, [traced], name=name, title=title, alt=_alt(lines), caption=caption)
        strips = [_strip(figure.panels[0], line, how[line.method].colour, marks) for line in lines]
        return replace(figure, panels=tuple(strips))


def _lines(rows: Sequence[Row]) -> list[_Line]:
    measured: dict[tuple[str, str], dict[float, None]] = {}
    bounds: dict[tuple[str, str], dict[tuple[str, float], None]] = {}
    for row in rows:
        value, bound = drawing.numbers([row.get("measured"), row.get("bound")], "log").tolist()
        key = drawing.clean(row.get("problem", "")), drawing.clean(row.get("method", ""))
        averages, ahead = measured.setdefault(key, {}), bounds.setdefault(key, {})
        if math.isfinite(value):
            averages[value] = None  # once, though every bound of a run repeats it
        if math.isfinite(bound):
            ahead[drawing.clean(row.get("name", "bound")), bound] = None
    return [
        _Line(*key, statistics.fmean(averages) if averages else math.nan, list(bounds[key]))
        for key, averages in measured.items()
    ]


def _placed(lines: list[_Line], problems: Sequence[str]) -> dict[str, float]:
    """Put the lines of each problem under a head of its own, from the top; return the places of the heads."""
    heads, place = {}, float(len(lines) + len(problems))
    lines.sort(key=lambda line: problems.index(line.problem))
    for line in lines:
        if line.problem not in heads:
            heads[line.problem] = place
            place -= 1
        line.place = place
        place -= 1
    return heads


def _marks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return marker and colour of each bound."""
    markers = ("|", "x", "+", "1", "2", "3", "4", "d", "*", "p", "h")
    return {bound: (markers[i % len(markers)], OTHERS[i % len(OTHERS)]) for i, bound in enumerate(dict.fromkeys(names))}


def _draw(axes: Axes, line: _Line, colour: str, marks: Mapping[str, tuple[str, str]]) -> None:
    values = [line.measured, *(value for _, value in line.bounds)]
    axes.plot([min(values), max(values)], [line.place] * 2, color=colour, linewidth=0.9, alpha=0.55, linestyle=LINES[0])
    for bound, value in line.bounds:
        marker, ink = marks[bound]
        axes.plot([value], [line.place], marker=marker, color=ink, markersize=8, markeredgewidth=1.8)
    axes.plot([line.measured], [line.place], marker="o", color=colour, markersize=5)


def _tick_words(axes: Axes, lines: Sequence[_Line], heads: Mapping[str, float]) -> None:
    places = [*(line.place for line in lines), *heads.values()]
    words = [*(drawing.short(line.method, 22) for line in lines), *(drawing.short(head, 26) for head in heads)]
    axes.set_yticks(places, words)
    for label in axes.get_yticklabels()[len(lines) :]:
        label.set_fontweight("bold")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(0.3, max(places) + 0.6)


def _key(marker: str, colour: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=7, markeredgewidth=1.6)


def _strip(panel: Panel, line: _Line, colour: str, marks: Mapping[str, tuple[str, str]]) -> Panel:
    """Return a line as a panel of its own, in which each mark's value is its number.

    The height of a mark says only which line it is on, and must not be read as a number. So the strip's own vertical
    scale is that of the values, and so long that all of them lie on its middle.
    """
    left, top, right, bottom = panel.box
    low, high = panel.y_range
    tall = (bottom - top) / (high - low)
    middle = bottom - (line.place - low) * tall
    points = [("measured", line.measured, colour), *((bound, value, marks[bound][1]) for bound, value in line.bounds)]
    series = [drawing.series(label, np.array([x]), np.array([x]), colour=ink) for label, x, ink in points]
    return replace(
        panel,
        x_name=f"{line.method} on {line.problem}: {X_NAME}",
        y_name="value",
        box=(left, round(middle - tall / 2, 2), right, round(middle + tall / 2, 2)),
        y_range=(1 / LONG, LONG),
        y_scale="log",
        series=tuple(series),
    )


def _alt(lines: Sequence[_Line]) -> str:
    pairs = [(line, value / line.measured) for line in lines for _, value in line.bounds]
    where = f"{len(lines)} lines, a method on a problem each"
    ends = drawing.listed([(f"{line.method} on {line.problem}", line.measured) for line in lines], most=3)
    if not pairs:
        return f"{where}. Measured averages: {ends}. No bounds."
    tight, loose = min(pairs, key=lambda pair: pair[1]), max(pairs, key=lambda pair: pair[1])
    broken = sum(ratio < 1 for _, ratio in pairs)
    return (
        f"{where}. Measured averages: {ends}. {len(pairs)} bounds are from {tight[1]:.3g} times the measured average "
        f"({drawing.short(tight[0].method, 30)} on {drawing.short(tight[0].problem, 30)}) to {loose[1]:.3g} times "
        f"({drawing.short(loose[0].method, 30)} on {drawing.short(loose[0].problem, 30)}); "
        f"{broken or 'none'} {'is' if broken == 1 else 'are'} below it."
    )
