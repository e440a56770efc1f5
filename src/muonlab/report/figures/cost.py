"""Time of an SVD over that of Newton-Schulz steps, predicted and measured (Kim & Oh 2026, Lemma 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from muonlab.lab.runner.timing import UNITS, ClockName
from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import Traced
from muonlab.report.figures.labels import label_points
from muonlab.report.figures.plain_svg import INK
from muonlab.report.figures.style import SGD_M, STEPS, SVD, Look
from muonlab.report.units import full_name
from muonlab.report.values import Figure, Series

Row = Mapping[str, Any]

METHODS: Mapping[str, tuple[str, Look]] = {
    "svd_seconds": ("SVD", SVD),
    "polar_seconds": ("polar, the faster way", SGD_M),
    "horner_seconds": ("steps, paper's form", STEPS[1]),
    "ours_seconds": ("steps, ours", STEPS[3]),
}


def cost_figure(
    rows: Sequence[Row],
    *,
    clock: ClockName = "wall",
    name: str = "cost",
    title: str = "Time of an SVD over Newton–Schulz steps",
) -> Figure | None:
    """Return predicted against measured ratio, a point for each shape, and the seconds of every method.

    Args:
        rows: with ``m``, ``n``, ``predicted_ratio``, ``measured_ratio``, ``svd_seconds``, ``horner_seconds``,
            ``ours_seconds`` and ``polar_seconds``, any of which may be None or missing.
        clock: that the times are of.
        name: of the figure.
        title: of the figure.
    """
    shaped = sorted((row for row in rows if _entries(row)), key=_entries)
    ratios = [row for row in shaped if _ratio(row) is not None]
    timed = [row for row in shaped if any(np.isfinite(drawing.numbers([row.get(key) for key in METHODS], "log")))]
    if not ratios and not timed:
        return None
    with drawing.sheet(3.5, drawing.WIDTH if ratios and timed else 0.65 * drawing.WIDTH) as canvas:
        grid = canvas.subplots(1, 2 if ratios and timed else 1, squeeze=False)[0]
        panels = []
        if ratios:
            panels.append(_ratios(grid[0], ratios))
        if timed:
            panel, entries = _seconds(grid[-1], timed, clock)
            panels.append(panel)
            drawing.legend(canvas, entries)
        if ratios:
            label_points(canvas, grid[0], [(*_pair(row), _shape(row)) for row in ratios], diagonal=True)
        return drawing.finish(
            canvas,
            panels,
            name=name,
            title=title,
            alt=_alt(ratios, timed, clock),
            caption="Left: SVD over steps in the paper's form; on the diagonal the lemma is exact, above it an SVD "
            f"took longer than predicted. Right: median {full_name(clock)} of every method, shapes from small to large."
            if ratios and timed
            else f"Shapes from small to large; times are {full_name(clock)}.",
        )


def _ratios(axes: Axes, rows: Sequence[Row]) -> Traced:
    names = "predicted SVD / steps", "measured SVD / steps"
    drawing.name_axes(axes, *names, x_scale="log", y_scale="log")
    pairs = [_pair(row) for row in rows]
    low, high = min(map(min, pairs)) / 1.5, max(map(max, pairs)) * 1.5
    axes.plot([low, high], [low, high], color=INK, linewidth=0.9, linestyle="--", alpha=0.6)
    axes.plot(*np.array(pairs).T, color=STEPS[3].colour, marker="o", linestyle="none", markersize=5.5)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    return Traced(axes, *names, [_point(row, pair) for row, pair in zip(rows, pairs, strict=True)])


def _point(row: Row, pair: tuple[float, float]) -> Series:
    return drawing.series(_shape(row), np.array(pair[:1]), np.array(pair[1:]), colour=STEPS[3].colour)


def _seconds(axes: Axes, rows: Sequence[Row], clock: ClockName) -> tuple[Traced, list[tuple[str, Artist]]]:
    drawing.name_axes(axes, "shape", UNITS[clock], y_scale="log")
    places = np.arange(1, len(rows) + 1, dtype=np.float64)
    series, entries = list[Series](), list[tuple[str, Artist]]()
    for key, (label, look) in METHODS.items():
        y = drawing.numbers([row.get(key) for row in rows], "log")
        if np.any(np.isfinite(y)):
            (line,) = axes.plot(places, y, color=look.colour, marker=look.marker, linewidth=0.9, markersize=5)
            series.append(drawing.series(label, places, y, colour=look.colour))
            entries.append((label, line))
    marked = drawing.thinned(len(rows), 24)
    axes.set_xticks(places[marked], [_shape(rows[i]) for i in marked], rotation=60, ha="right", rotation_mode="anchor")
    axes.set_xlabel("")
    axes.grid(visible=False, axis="x")
    return Traced(axes, "shape, by size: number", UNITS[clock], series), entries


def _entries(row: Row) -> float:
    m, n = drawing.numbers([row.get("m"), row.get("n")], "log")
    return float(m * n) if np.isfinite(m * n) else 0.0


def _shape(row: Row) -> str:
    return f"{drawing.number(row['m']):g}×{drawing.number(row['n']):g}"


def _pair(row: Row) -> tuple[float, float]:
    x, y = drawing.numbers([row.get("predicted_ratio"), row.get("measured_ratio")], "log")
    return float(x), float(y)


def _ratio(row: Row) -> float | None:
    x, y = _pair(row)
    return y / x if np.isfinite(x * y) else None


def _alt(ratios: Sequence[Row], timed: Sequence[Row], clock: ClockName) -> str:
    words = []
    if ratios:
        measured = [(_shape(row), _pair(row)[1]) for row in ratios]
        off = [(_shape(row), value) for row in ratios if (value := _ratio(row)) is not None]
        words.append(f"Measured time of an SVD over steps: {drawing.listed(measured)}.")
        words.append(f"Measured over predicted: {drawing.listed(off)}.")
    if timed:
        big = timed[-1]
        said = [(label, float(y)) for key, (label, _) in METHODS.items()
                if np.isfinite(y := drawing.numbers([big.get(key)], "log")[0])]  # fmt: skip
        words.append(f"Time in {full_name(clock)} at {_shape(big)}: {drawing.listed(said)}." if said else "")
    return " ".join(words)
