"""A sweep: the loss at the end over the values of one axis, such as the learning rate, a curve for each optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.artist import Artist

from muonlab.report.curves import Curve
from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import DrawnPanel
from muonlab.report.figures.style import curve_styles
from muonlab.report.values import Figure


def sweep_figure(axis: str, curves: Mapping[str, Sequence[Curve]]) -> Figure | None:
    """Return a panel for each kind of loss, with the axis on a log scale if its values are positive.

    Args:
        axis: name of the axis.
        curves: by the name of the loss; x are the values of the axis.
    """
    drawn = {name: [curve for curve in group if len(curve.x)] for name, group in curves.items()}
    drawn = {name: group for name, group in drawn.items() if group}
    if not drawn:
        return None
    labels = list(dict.fromkeys(curve.label for group in drawn.values() for curve in group))
    styles = curve_styles(labels)
    positive = all(curve.x.min() > 0 for group in drawn.values() for curve in group)
    scale: Literal["linear", "log"] = "log" if positive else "linear"
    handles: dict[str, Artist] = {}
    panels = []
    with drawing.new_canvas(2.9, 0.5 * drawing.WIDTH * max(2, len(drawn)) * (1.0 if len(drawn) > 1 else 0.7)) as canvas:
        for axes, (loss, group) in zip(canvas.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True):
            drawing.name_axes(axes, axis, loss, x_scale=scale)
            series = []
            for curve in group:
                style = styles[curve.label]
                std = np.full_like(curve.mean, np.nan) if curve.std is None else curve.std
                axes.errorbar(curve.x, curve.mean, std, color=style.colour, linestyle="none", capsize=2.5)
                handles.setdefault(curve.label, drawing.draw_curve(axes, curve.x, curve.mean, style))
                series.append(drawing.series(curve.label, curve.x, curve.mean, curve.std, colour=style.colour))
            panels.append(DrawnPanel(axes, axis, loss, series))
        drawing.legend(canvas, [(label, handles[label]) for label in labels])
        lowest = [(curve.label, float(curve.mean.min())) for curve in next(iter(drawn.values()))]
        caption = "Loss at the last evaluation, mean ± one standard deviation over runs, by " + axis + "."
        alt = f"Lowest {next(iter(drawn))}: {drawing.describe_values(lowest)}."
        name = f"sweep-{axis.replace('.', '-').replace('_', '-')}"
        return drawing.to_figure(canvas, panels, name=name, title=f"Loss over {axis}", alt=alt, caption=caption)
