"""Certificates of every layer over training: residual, polar error, its factor in the bound, and alignment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from muonlab.report import drawing
from muonlab.report.drawing import Array, Traced
from muonlab.report.plain_svg import INK
from muonlab.report.style import Look, looks
from muonlab.report.values import Figure, Scale, Series

Row = Mapping[str, Any]
LEGEND, HOVER, DRAWN = 12, 40, 300
WHOLE = Look("#777788", "", "-.")


@dataclass(frozen=True)
class _Kind:
    """A panel: how it is named and what of a row it shows."""

    name: str
    scale: Scale
    value: Callable[[Row], float]


def _field(*names: str) -> Callable[[Row], float]:
    def value(row: Row) -> float:
        return next((found for name in names if np.isfinite(found := drawing.number(row.get(name)))), float("nan"))

    return value


_KINDS = (
    _Kind("1 − residual δ", "log", lambda row: 1 - drawing.number(row.get("delta"))),
    _Kind("polar error ε", "linear", _field("epsilon")),
    _Kind("factor χ", "log", _field("chi")),
    _Kind("alignment ρ/s", "linear", _field("alignment", "descent")),
)
_FLOOR = _field("alignment_floor")


def layers_figure(
    rows: Sequence[Row], *, name: str = "layers", title: str = "Certificates of every layer over training"
) -> Figure | None:
    """Return δ_q (as 1 − δ_q, on a log axis), ε_q, χ_q and the alignment with its floor, a line for each layer.

    A residual close to 1 is what small singular values leave; 1 − δ_q tells 0.9999 from 0.99999999, δ_q does not.

    Args:
        rows: of ``certificates.jsonl`` of one cell; those of event ``"matrix"``, and of ``"whole"`` for the alignment.
        name: of the figure.
        title: of the figure.
    """
    layers = _by_layer(rows)
    kinds = [kind for kind in _KINDS if any(_has(kind, some) for some in layers.values())]
    if not kinds:
        return None
    whole = [row for row in rows if row.get("event") == "whole"]
    how = looks(layers)
    columns = min(2, len(kinds))
    with drawing.sheet(0.3 + 2.2 * -(-len(kinds) // columns)) as canvas:
        grid = canvas.subplots(-(-len(kinds) // columns), columns, squeeze=False).flatten()
        handles: dict[str, Artist] = {}
        panels = [_panel(axes, kind, layers, how, handles) for axes, kind in zip(grid, kinds, strict=False)]
        for axes in grid[len(kinds) :]:
            axes.set_axis_off()
        entries = [(_layer_words(label), handles[label]) for label in layers if label in handles][:LEGEND]
        if kinds[-1] is _KINDS[-1]:
            panels[-1] = _alignment(panels[-1], layers, how, whole)
            entries += [("whole network", Line2D([], [], color=WHOLE.colour, linestyle="-."))] if whole else []
            entries += [("floor", Line2D([], [], color=INK, linestyle="--", linewidth=1))]
        drawing.legend(canvas, entries)
        return drawing.finish(
            canvas, panels, name=name, title=title, alt=_alt(kinds, layers), caption=_caption(kinds, layers)
        )


def _by_layer(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return each layer's rows by step, the last of those that share one."""
    found: dict[str, dict[float, Row]] = {}
    for row in rows:
        step = drawing.number(row.get("step"))
        if row.get("event") == "matrix" and np.isfinite(step):
            found.setdefault(str(row.get("name", "")), {})[step] = row
    return {label: [some[step] for step in sorted(some)] for label, some in found.items()}


def _points(kind: _Kind, rows: Sequence[Row]) -> tuple[Array, Array]:
    return drawing.numbers([row.get("step") for row in rows]), drawing.numbers(map(kind.value, rows), kind.scale)


def _has(kind: _Kind, rows: Sequence[Row]) -> bool:
    return bool(np.any(np.isfinite(_points(kind, rows)[1])))


def _panel(
    axes: Axes, kind: _Kind, layers: Mapping[str, Sequence[Row]], how: Mapping[str, Look], handles: dict[str, Artist]
) -> Traced:
    drawing.name_axes(axes, "step", kind.name, y_scale=kind.scale)
    series: list[Series] = []
    for place, (label, rows) in enumerate(layers.items()):
        if not _has(kind, rows):
            continue
        steps, y = _points(kind, rows)
        drawn = drawing.thinned(len(steps), DRAWN)
        line = drawing.trace(axes, steps[drawn], y[drawn], how[label], thin=len(layers) > LEGEND, shift=place)
        handles.setdefault(label, line)
        if len(layers) <= HOVER or place < LEGEND:
            series.append(drawing.series(label, steps, y, colour=how[label].colour))
    return Traced(axes, "step", kind.name, series)


def _alignment(
    panel: Traced, layers: Mapping[str, Sequence[Row]], how: Mapping[str, Look], whole: Sequence[Row]
) -> Traced:
    """Add the floors, dashed, and the whole network."""
    more: list[Series] = []
    for place, (label, rows) in enumerate(layers.items()):
        steps = drawing.numbers([row.get("step") for row in rows])
        floor = drawing.numbers(map(_FLOOR, rows))
        if np.any(np.isfinite(floor)):
            panel.axes.plot(steps, floor, color=how[label].colour, linestyle="--", linewidth=1.0, alpha=0.9)
            if len(layers) <= LEGEND or place < LEGEND // 2:
                more.append(drawing.series(f"{label}, floor", steps, floor, colour=how[label].colour, most=20))
    steps, y = _points(_KINDS[-1], whole)
    if np.any(np.isfinite(y)):
        panel.axes.plot(steps, y, color=WHOLE.colour, linestyle=WHOLE.line, linewidth=1.4)
        more.append(drawing.series("whole network", steps, y, colour=WHOLE.colour))
    return Traced(panel.axes, panel.x_name, panel.y_name, [*panel.series, *more])


def _layer_words(label: str) -> str:
    """Return a layer's name as the legend has it: both ends of a long one tell it from others."""
    words = drawing.clean(label).removesuffix(".weight")
    return words if len(words) <= 26 else f"{words[:13]}…{words[-12:]}"


def _caption(kinds: Sequence[_Kind], layers: Mapping[str, Sequence[Row]]) -> str:
    words = ["Measured on the momentum of each layer while training."]
    if kinds[0] is _KINDS[0]:
        words.append(
            "The residual is shown as 1 − δ on a log axis, where residuals near 1 can be told apart: higher is better."
        )
    words.append("Dashed: the alignment guaranteed for every matrix of that rank.")
    if len(layers) > LEGEND:
        words.append(f"All {len(layers)} layers are drawn; the legend has the first {LEGEND}.")
    return " ".join(words)


def _alt(kinds: Sequence[_Kind], layers: Mapping[str, Sequence[Row]]) -> str:
    words = []
    for kind in kinds:
        last = []
        for label, rows in layers.items():
            y = _points(kind, rows)[1]
            if np.any(np.isfinite(y)):
                last.append((_layer_words(label), float(y[np.isfinite(y)][-1])))
        words.append(f"{kind.name} at the end: {drawing.listed(last, most=3)}.")
    floors = [value for rows in layers.values() for row in rows if np.isfinite(value := _FLOOR(row))]
    if floors:
        words.append(f"Floors are {min(floors):.3g} to {max(floors):.3g}.")
    return " ".join(words)
