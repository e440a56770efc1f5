"""Labels of points, placed so that they overlap neither each other nor the points."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from muonlab.report.figures import drawing

SIZE = 8.0
_SIDES = (("left", 6, -3), ("right", -6, -3), ("center", 0, 6), ("center", 0, -13), ("left", 5, 6), ("left", 5, -12),
          ("right", -5, 6), ("right", -5, -12), ("left", 12, 14), ("right", -12, -20), ("right", -12, 14),
          ("left", 12, -20))  # fmt: skip
"""Possible positions, best first: alignment, and shift from the point in units of the drawing."""

Box = tuple[float, float, float, float]


def label_points(canvas: Canvas, axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Write a label next to each point (x, y, label), clear of the diagonal; a label without room is left out."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from|constrained_layout not applied")
        canvas.draw_without_rendering()
    frame = axes.bbox.x0, axes.bbox.y0, axes.bbox.x1, axes.bbox.y1
    at = [tuple(map(float, axes.transData.transform((x, y)))) for x, y, _ in points]
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in at]
    along = np.linspace(frame[:2], frame[2:], 150)
    taken += [(float(x) - 1, float(y) - 1, float(x) + 1, float(y) + 1) for x, y in along]
    for place, (x, y, label) in enumerate(points):
        text = drawing.shorten(label, 22)
        for side, right, up in _SIDES:
            box = _box(at[place][0] + right, at[place][1] + up, side, len(text) * SIZE * 0.6)
            if _inside(box, frame) and not any(_overlap(box, other) for i, other in enumerate(taken) if i != place):
                axes.annotate(text, (x, y), (right, up), textcoords="offset points", ha=side, fontsize=SIZE)
                taken.append(box)
                break


def _box(x: float, y: float, side: str, wide: float) -> Box:
    left = x - {"left": 0.0, "center": 0.5, "right": 1.0}[side] * wide
    return left, y - 1, left + wide, y + SIZE - 1


def _inside(box: Box, frame: Box) -> bool:
    return box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] + 4 and box[3] <= frame[3] + 4


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
