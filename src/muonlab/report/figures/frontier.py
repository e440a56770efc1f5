"""The planner's choices: seconds of an orthogonalization against its alignment, for each shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist

from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import DrawnPanel
from muonlab.report.figures.style import curve_styles
from muonlab.report.values import Figure, ResultRow, Series

NAMES = "seconds for one matrix", "typical alignment"


def frontier_figure(plans: Sequence[ResultRow]) -> Figure | None:
    """Return one line per shape from the cheapest to the best choice; None if no plan can be drawn.

    Args:
        plans: rows with ``m``, ``n``, ``schedule``, ``steps``, ``prescale``, ``method``, ``seconds``, ``alignment`` and
            ``floor``.
    """
    shapes = _shapes(plans)
    if not shapes:
        return None
    styles = curve_styles(shapes)
    with drawing.new_canvas(3.3) as canvas:
        axes = canvas.subplots()
        drawing.name_axes(axes, *NAMES, x_scale="log")
        entries: list[tuple[str, Artist]] = []
        points: list[Series] = []
        for shape, rows in shapes.items():
            style = styles[shape]
            x, y = np.array([_seconds(row) for row in rows]), np.array([_alignment(row) for row in rows])
            (line,) = axes.plot(
                x, y, color=style.colour, marker=style.marker, linestyle=style.line, drawstyle="steps-post"
            )
            entries.append((shape, line))
            points += [
                drawing.series(_choice(shape, row), x[i : i + 1], y[i : i + 1], colour=style.colour)
                for i, row in enumerate(rows)
            ]
        drawing.legend(canvas, entries[:12])
        caption = (
            "Each marker is a choice of schedule, steps, prescale and method that no other choice beats in both time "
            "and alignment. Alignment is the smallest over typical spectra; time is predicted in wall seconds for the "
            "machine of the run."
        )
        if len(shapes) > 12:
            caption += f" All {len(shapes)} shapes are drawn; the legend has the first 12."
        return drawing.to_figure(
            canvas,
            [DrawnPanel(axes, *NAMES, points)],
            name="frontier",
            title="Planner: time of an orthogonalization against its alignment",
            alt=_alt(shapes),
            caption=caption,
        )


def _shapes(plans: Sequence[ResultRow]) -> dict[str, list[ResultRow]]:
    by_shape: dict[str, list[ResultRow]] = {}
    for row in plans:
        if np.isfinite(_seconds(row)) and np.isfinite(_alignment(row)):
            by_shape.setdefault(f"{row['m']}×{row['n']}", []).append(row)
    return {shape: sorted(rows, key=lambda row: (_seconds(row), _alignment(row))) for shape, rows in by_shape.items()}


def _seconds(row: ResultRow) -> float:
    return float(drawing.finite_numbers([row.get("seconds")], "log")[0])


def _alignment(row: ResultRow) -> float:
    return drawing.finite_number(row.get("alignment"))


def _choice(shape: str, row: ResultRow) -> str:
    schedule = str(row["schedule"]).removesuffix(f" x{row['steps']}")
    parts = [f"{shape}: {schedule}, {row['steps']} steps", row["prescale"], row["method"]]
    if row.get("floor") is not None:
        parts.append(f"floor {row['floor']:.3g}")
    return ", ".join(parts)


def _alt(shapes: Mapping[str, Sequence[ResultRow]]) -> str:
    parts = [
        f"{shape}: from {_seconds(rows[0]):.3g} s for alignment {_alignment(rows[0]):.3g} to {_seconds(rows[-1]):.3g} "
        f"s for {_alignment(rows[-1]):.4g}"
        for shape, rows in list(shapes.items())[:6]
    ]
    return "; ".join(parts) + (f"; and {len(shapes) - 6} more shapes." if len(shapes) > 6 else ".")
