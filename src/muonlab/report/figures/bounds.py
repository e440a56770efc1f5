"""Measured gradient norms on problems with known constants, next to their bounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import DrawnPanel
from muonlab.report.figures.style import LINES, OTHERS, curve_styles
from muonlab.report.figures.svg import INK
from muonlab.report.values import Figure, Panel, ResultRow

MOST_LINES = 120
TITLE = "Measured gradient norms and their bounds"
X_NAME = "average nuclear norm of ∇f"
LONG = drawing.HUGE**2
"""Largest value of a strip's vertical scale, far beyond every value that is drawn."""


@dataclass
class _Line:
    """A line of the plot: one method on one problem."""

    problem: str
    method: str
    measured: float
    bounds: list[tuple[str, float]]
    place: float = 0.0


def bounds_figure(rows: Sequence[ResultRow], *, name: str = "bounds", title: str = TITLE) -> Figure | None:
    """Return a dot for each measured average and a mark for each of its bounds, on a log axis, grouped by problem.

    Args:
        rows: with ``problem``, ``method``, ``measured``, ``bound`` (a number) and ``name`` of the bound; rows of the
            same problem and method share a line, and values measured with several seeds are averaged.
        name: of the figure.
        title: of the figure.

    Returns:
        The figure, or None if no row has a positive measured value.
    """
    all_lines = _lines(rows)
    every = [line for line in all_lines if math.isfinite(line.measured)]
    lines = every[:MOST_LINES]
    if not lines:
        return None
    problems = list(dict.fromkeys(line.problem for line in lines))
    heads = _placed(lines, problems)
    styles = curve_styles(dict.fromkeys(line.method for line in lines))
    marks = _marks([bound for line in lines for bound, _ in line.bounds])
    with drawing.new_canvas(0.75 + 0.2 * (len(lines) + len(problems))) as canvas:
        axes = canvas.subplots()
        drawing.name_axes(axes, X_NAME, "", x_scale="log")
        for line in lines:
            _draw(axes, line, styles[line.method].colour, marks)
        _tick_labels(axes, lines, heads)
        entries: list[tuple[str, Artist]] = [("measured", _key("o", INK))]
        drawing.legend(canvas, entries + [(bound, _key(*mark)) for bound, mark in marks.items()])
        panel = DrawnPanel(axes, X_NAME, "", [])
        caption = (
            "Dots are measured averages over runs, in the colour of their method; the other marks are their bounds, "
            "which should lie to the right of the dot."
        )
        if len(every) > len(lines):
            caption += f" The first {len(lines)} of {len(every)} lines are drawn."
        if len(all_lines) > len(every):
            caption += f" {len(all_lines) - len(every)} without a positive finite average are left out."
        figure = drawing.to_figure(canvas, [panel], name=name, title=title, alt=_alt(lines), caption=caption)
        strips = [_strip(figure.panels[0], line, styles[line.method].colour, marks) for line in lines]
        return replace(figure, panels=tuple(strips))


def _lines(rows: Sequence[ResultRow]) -> list[_Line]:
    measured: dict[tuple[str, str], dict[float, None]] = {}
    bounds: dict[tuple[str, str], dict[tuple[str, float], None]] = {}
    for row in rows:
        value, bound = drawing.finite_numbers([row.get("measured"), row.get("bound")], "log").tolist()
        key = drawing.clean(row.get("problem", "")), drawing.clean(row.get("method", ""))
        averages, of_line = measured.setdefault(key, {}), bounds.setdefault(key, {})
        if math.isfinite(value):
            averages[value] = None  # every bound of a run repeats it
        if math.isfinite(bound):
            of_line[drawing.clean(row.get("name", "bound")), bound] = None
    return [
        _Line(*key, statistics.fmean(averages) if averages else math.nan, list(bounds[key]))
        for key, averages in measured.items()
    ]


def _placed(lines: list[_Line], problems: Sequence[str]) -> dict[str, float]:
    """Place the lines of each problem below a heading, from the top; return the positions of the headings."""
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


def _tick_labels(axes: Axes, lines: Sequence[_Line], heads: Mapping[str, float]) -> None:
    axes.set_yticks([line.place for line in lines], [drawing.shorten(line.method, 22) for line in lines])
    for head, place in heads.items():  # inside of the axes, where long names have room
        axes.text(
            0.01, place, drawing.shorten(head, 70), transform=axes.get_yaxis_transform(), va="center",
            fontweight="bold", fontsize=axes.get_yticklabels()[0].get_fontsize(),
        )  # fmt: skip
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(0.3, max(heads.values()) + 0.6)


def _key(marker: str, colour: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=7, markeredgewidth=1.6)


def _strip(panel: Panel, line: _Line, colour: str, marks: Mapping[str, tuple[str, str]]) -> Panel:
    """Return a line as a separate panel, so that the pointer reads the numbers of one line.

    The height of a mark is not a number. The vertical scale of the strip is so long that every value, which is also the
    y of its mark, lies in the middle of the strip.
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
    ends = drawing.describe_values([(f"{line.method} on {line.problem}", line.measured) for line in lines], most=3)
    if not pairs:
        return f"{where}. Measured averages: {ends}. No bounds."
    tight, loose = min(pairs, key=lambda pair: pair[1]), max(pairs, key=lambda pair: pair[1])
    broken = sum(ratio < 1 for _, ratio in pairs)
    return (
        f"{where}. Measured averages: {ends}. {len(pairs)} bounds are from {tight[1]:.3g} times the measured average "
        f"({drawing.shorten(tight[0].method, 30)} on {drawing.shorten(tight[0].problem, 30)}) to {loose[1]:.3g} times "
        f"({drawing.shorten(loose[0].method, 30)} on {drawing.shorten(loose[0].problem, 30)}); "
        f"{broken or 'none'} {'is' if broken == 1 else 'are'} below it."
    )
