"""What a planner can choose from: seconds of an orthogonalization against its alignment, for each shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist

from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import Traced
from muonlab.report.figures.style import looks
from muonlab.report.values import Figure, Series

Row = Mapping[str, Any]
NAMES = "seconds for one matrix", "typical alignment"


def frontier_figure(
    plans: Sequence[Row], *, name: str = "frontier", title: str = "Time against alignment"
) -> Figure | None:
    """Return a line for each shape, from cheap to good.

    Args:
        plans: rows with ``m``, ``n``, ``schedule``, ``steps``, ``prescale``, ``method``, ``seconds``, ``alignment`` and
            ``floor``.
        name: of the figure.
        title: of the figure.
    """
    shapes = _shapes(plans)
    if not shapes:
        return None
    how = looks(shapes)
    with drawing.sheet(3.3) as canvas:
        axes = canvas.subplots()
        drawing.name_axes(axes, *NAMES, x_scale="log")
        entries: list[tuple[str, Artist]] = []
        points: list[Series] = []
        for shape, rows in shapes.items():
            look = how[shape]
            x, y = np.array([_seconds(row) for row in rows]), np.array([_alignment(row) for row in rows])
            (line,) = axes.plot(
                x, y, color=look.colour, marker=look.marker, linestyle=look.line, drawstyle="steps-post"
            )
            entries.append((shape, line))
            points += [
                drawing.series(_choice(shape, row), x[i : i + 1], y[i : i + 1], colour=look.colour)
                for i, row in enumerate(rows)
            ]
        drawing.legend(canvas, entries[:12])
        caption = (
            "Each marker is a choice of schedule, steps, prescale and method that no other beats in both time and "
            "alignment; alignment is the least over typical spectra, time is predicted in wall seconds for the machine "
            "of the run."
        )
        if len(shapes) > 12:
            caption += f" All {len(shapes)} shapes are drawn; the legend has the first 12."
        return drawing.finish(
            canvas, [Traced(axes, *NAMES, points)], name=name, title=title, alt=_alt(shapes), caption=caption
        )


def _shapes(plans: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in plans:
        if np.isfinite(_seconds(row)) and np.isfinite(_alignment(row)):
            found.setdefault(f"{drawing.clean(row.get('m'))}×{drawing.clean(row.get('n'))}", []).append(row)
    return {shape: sorted(rows, key=lambda row: (_seconds(row), _alignment(row))) for shape, rows in found.items()}


def _seconds(row: Row) -> float:
    return float(drawing.numbers([row.get("seconds")], "log")[0])


def _alignment(row: Row) -> float:
    return drawing.number(row.get("alignment"))


def _choice(shape: str, row: Row) -> str:
    steps = drawing.number(row.get("steps"))
    schedule = str(row.get("schedule", "?")).removesuffix(f" x{steps:g}")
    words = [
        f"{shape}: {schedule}, {steps:g} steps",
        *(str(row[key]) for key in ("prescale", "method") if row.get(key)),
    ]
    floor = drawing.number(row.get("floor"))
    return ", ".join(words) + (f", floor {floor:.3g}" if np.isfinite(floor) else "")


def _alt(shapes: Mapping[str, Sequence[Row]]) -> str:
    words = [
        f"{shape}: from {_seconds(rows[0]):.3g} s for alignment {_alignment(rows[0]):.3g} to {_seconds(rows[-1]):.3g} "
        f"s for {_alignment(rows[-1]):.4g}"
        for shape, rows in list(shapes.items())[:6]
    ]
    return "; ".join(words) + (f"; and {len(shapes) - 6} more shapes." if len(shapes) > 6 else ".")
