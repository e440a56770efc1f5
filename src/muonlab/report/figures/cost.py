"""Time of an SVD over that of Newton-Schulz steps, predicted and measured (Kim & Oh 2026, Lemma 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from muonlab.lab.runner.timing import UNITS, ClockName, unit_name
from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import DrawnPanel
from muonlab.report.figures.labels import label_points
from muonlab.report.figures.style import SGD_M_STYLE, STEP_STYLES, SVD_STYLE, CurveStyle
from muonlab.report.figures.svg import INK
from muonlab.report.values import Figure, ResultRow, Series

METHODS: Mapping[str, tuple[str, CurveStyle]] = {
    "svd_seconds": ("SVD", SVD_STYLE),
    "polar_seconds": ("polar, the faster way", SGD_M_STYLE),
    "horner_seconds": ("steps, paper's form", STEP_STYLES[1]),
    "ours_seconds": ("steps, ours", STEP_STYLES[3]),
}


def cost_figure(rows: Sequence[ResultRow], clock: ClockName = "wall") -> Figure | None:
    """Return predicted against measured ratios, one point per shape, and the seconds of every method.

    Args:
        rows: with ``m``, ``n``, ``predicted_ratio``, ``measured_ratio``, ``svd_seconds``, ``horner_seconds``,
            ``ours_seconds`` and ``polar_seconds``; all but ``m`` and ``n`` may be None or missing.
        clock: the clock of the times.

    Returns:
        The figure, or None if no row has a ratio or a time.
    """
    shaped = sorted(rows, key=lambda row: row["m"] * row["n"])
    ratios = [row for row in shaped if _ratio(row) is not None]
    timed = [
        row for row in shaped if any(np.isfinite(drawing.finite_numbers([row.get(key) for key in METHODS], "log")))
    ]
    if not ratios and not timed:
        return None
    with drawing.new_canvas(3.5, drawing.WIDTH if ratios and timed else 0.65 * drawing.WIDTH) as canvas:
        grid = canvas.subplots(1, 2 if ratios and timed else 1, squeeze=False)[0]
        panels = []
        if ratios:
            panels.append(_ratios(grid[0], ratios))
        if timed:
            panel, entries = _seconds(grid[-1], timed, clock)
            panels.append(panel)
            drawing.legend(canvas, entries)
        if ratios:
            label_points(canvas, grid[0], [(*_pair(row), _shape(row)) for row in ratios])
        return drawing.to_figure(
            canvas,
            panels,
            name="cost",
            title="Time of an SVD over Newton–Schulz steps",
            alt=_alt(ratios, timed, clock),
            caption="Left: SVD over steps in the paper's form; on the diagonal the lemma is exact, above it the SVD "
            f"took longer than predicted. Right: median {unit_name(clock)} of each method, shapes from small to large."
            if ratios and timed
            else f"Shapes from small to large; times are {unit_name(clock)}.",
        )


def _ratios(axes: Axes, rows: Sequence[ResultRow]) -> DrawnPanel:
    names = "predicted SVD / steps", "measured SVD / steps"
    drawing.name_axes(axes, *names, x_scale="log", y_scale="log")
    pairs = [_pair(row) for row in rows]
    low, high = min(map(min, pairs)) / 1.5, max(map(max, pairs)) * 1.5
    axes.plot([low, high], [low, high], color=INK, linewidth=0.9, linestyle="--", alpha=0.6)
    axes.plot(*np.array(pairs).T, color=STEP_STYLES[3].colour, marker="o", linestyle="none", markersize=5.5)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    return DrawnPanel(axes, *names, [_point(row, pair) for row, pair in zip(rows, pairs, strict=True)])


def _point(row: ResultRow, pair: tuple[float, float]) -> Series:
    return drawing.series(_shape(row), np.array(pair[:1]), np.array(pair[1:]), colour=STEP_STYLES[3].colour)


def _seconds(axes: Axes, rows: Sequence[ResultRow], clock: ClockName) -> tuple[DrawnPanel, list[tuple[str, Artist]]]:
    drawing.name_axes(axes, "shape", UNITS[clock], y_scale="log")
    places = np.arange(1, len(rows) + 1, dtype=np.float64)
    series, entries = list[Series](), list[tuple[str, Artist]]()
    for key, (label, look) in METHODS.items():
        y = drawing.finite_numbers([row.get(key) for row in rows], "log")
        if np.any(np.isfinite(y)):
            (line,) = axes.plot(places, y, color=look.colour, marker=look.marker, linewidth=0.9, markersize=5)
            series.append(drawing.series(label, places, y, colour=look.colour))
            entries.append((label, line))
    marked = drawing.spaced_indices(len(rows), 24)
    axes.set_xticks(places[marked], [_shape(rows[i]) for i in marked], rotation=60, ha="right", rotation_mode="anchor")
    axes.set_xlabel("")
    axes.grid(visible=False, axis="x")
    return DrawnPanel(axes, "shape, by size: number", UNITS[clock], series), entries


def _shape(row: ResultRow) -> str:
    return f"{row['m']}×{row['n']}"


def _pair(row: ResultRow) -> tuple[float, float]:
    x, y = drawing.finite_numbers([row.get("predicted_ratio"), row.get("measured_ratio")], "log")
    return float(x), float(y)


def _ratio(row: ResultRow) -> float | None:
    x, y = _pair(row)
    return y / x if np.isfinite(x * y) else None


def _alt(ratios: Sequence[ResultRow], timed: Sequence[ResultRow], clock: ClockName) -> str:
    sentences = []
    if ratios:
        measured = [(_shape(row), _pair(row)[1]) for row in ratios]
        errors = [(_shape(row), value) for row in ratios if (value := _ratio(row)) is not None]
        sentences.append(f"Measured time of an SVD over steps: {drawing.describe_values(measured)}.")
        sentences.append(f"Measured over predicted: {drawing.describe_values(errors)}.")
    if timed:
        big = timed[-1]
        times = [(label, float(y)) for key, (label, _) in METHODS.items()
                if np.isfinite(y := drawing.finite_numbers([big.get(key)], "log")[0])]  # fmt: skip
        sentences.append(
            f"Time in {unit_name(clock)} at {_shape(big)}: {drawing.describe_values(times)}." if times else ""
        )
    return " ".join(sentences)
