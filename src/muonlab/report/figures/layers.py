"""Certificates of every layer over training: residual, polar error and its factor, descent, gain and alignment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from muonlab.polynomials.base import Array
from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import DrawnPanel
from muonlab.report.figures.style import CurveStyle, curve_styles
from muonlab.report.figures.svg import INK
from muonlab.report.values import AxisScale, Figure, ResultRow, Series

LEGEND, HOVER, DRAWN = 12, 40, 300
NETWORK_STYLE = CurveStyle("#777788", "", "-.")


@dataclass(frozen=True)
class _Kind:
    """A panel: its name, its value from a row, and the least height of its axis, so that rounding does not fill it."""

    name: str
    scale: AxisScale
    value: Callable[[ResultRow], float]
    least: float = 0.0


def _field(name: str) -> Callable[[ResultRow], float]:
    return lambda row: drawing.finite_number(row.get(name))


_KINDS = (
    _Kind("1 − residual δ", "log", lambda row: 1 - drawing.finite_number(row.get("delta"))),
    _Kind("polar error ε", "linear", _field("epsilon")),
    _Kind("factor χ", "log", _field("chi")),
    _Kind("descent ρ", "linear", _field("descent"), least=0.01),
    _Kind("gain s", "linear", _field("op_norm"), least=0.01),
    _Kind("alignment ρ/s", "linear", _field("alignment"), least=0.01),
)
_FLOOR = _field("alignment_floor")


def layers_figure(rows: Sequence[ResultRow], *, name: str, title: str) -> Figure | None:
    """Return 1 − δ_q (on a log axis), ε_q, χ_q, ρ, s and ρ/s with its floor over training steps, one line per layer.

    The log axis of 1 − δ_q distinguishes residuals close to 1, which small singular values cause.

    Args:
        rows: rows of ``certificates.jsonl`` of one cell, of the events ``"matrix"`` and ``"whole"``.
        name: name of the figure.
        title: title of the figure.

    Returns:
        The figure, or None if no row has a value.
    """
    layers = _by_layer(rows)
    kinds = [kind for kind in _KINDS if any(_has(kind, layer) for layer in layers.values())]
    if not kinds:
        return None
    whole = [row for row in rows if row["event"] == "whole"]
    styles = curve_styles(layers)
    columns = min(2, len(kinds))
    with drawing.new_canvas(0.3 + 2.2 * -(-len(kinds) // columns)) as canvas:
        grid = canvas.subplots(-(-len(kinds) // columns), columns, squeeze=False).flatten()
        handles: dict[str, Artist] = {}
        panels = [_panel(axes, kind, layers, styles, handles) for axes, kind in zip(grid, kinds, strict=False)]
        for axes in grid[len(kinds) :]:
            axes.set_axis_off()
        entries = [(_layer_name(label), handles[label]) for label in layers if label in handles][:LEGEND]
        if kinds[-1] is _KINDS[-1]:
            panels[-1] = _alignment(panels[-1], layers, styles, whole)
            entries += [("whole network", Line2D([], [], color=NETWORK_STYLE.colour, linestyle="-."))] if whole else []
            entries += [("floor", Line2D([], [], color=INK, linestyle="--", linewidth=1))] if _floors(layers) else []
        for axes, kind in zip(grid, kinds, strict=False):
            _widen(axes, kind.least)
        drawing.legend(canvas, entries)
        return drawing.to_figure(
            canvas, panels, name=name, title=title, alt=_alt(kinds, layers), caption=_caption(kinds, layers)
        )


def _by_layer(rows: Sequence[ResultRow]) -> dict[str, list[ResultRow]]:
    """Return the rows of each layer in the order of steps; of several rows of one step, the last."""
    layers: dict[str, dict[int, ResultRow]] = {}
    for row in rows:
        if row["event"] == "matrix":
            layers.setdefault(row["name"], {})[row["step"]] = row
    return {label: [by_step[step] for step in sorted(by_step)] for label, by_step in layers.items()}


def _points(kind: _Kind, rows: Sequence[ResultRow]) -> tuple[Array, Array]:
    return drawing.finite_numbers([row.get("step") for row in rows]), drawing.finite_numbers(
        map(kind.value, rows), kind.scale
    )


def _has(kind: _Kind, rows: Sequence[ResultRow]) -> bool:
    return bool(np.any(np.isfinite(_points(kind, rows)[1])))


def _panel(
    axes: Axes,
    kind: _Kind,
    layers: Mapping[str, Sequence[ResultRow]],
    styles: Mapping[str, CurveStyle],
    handles: dict[str, Artist],
) -> DrawnPanel:
    drawing.name_axes(axes, "step", kind.name, y_scale=kind.scale)
    series: list[Series] = []
    for place, (label, rows) in enumerate(layers.items()):
        if not _has(kind, rows):
            continue
        steps, y = _points(kind, rows)
        drawn = drawing.spaced_indices(len(steps), DRAWN)
        line = drawing.draw_curve(axes, steps[drawn], y[drawn], styles[label], thin=len(layers) > LEGEND, shift=place)
        handles.setdefault(label, line)
        if len(layers) <= HOVER or place < LEGEND:
            series.append(drawing.series(label, steps, y, colour=styles[label].colour))
    return DrawnPanel(axes, "step", kind.name, series)


def _alignment(
    panel: DrawnPanel,
    layers: Mapping[str, Sequence[ResultRow]],
    styles: Mapping[str, CurveStyle],
    whole: Sequence[ResultRow],
) -> DrawnPanel:
    """Add the floors as dashed lines, and the whole network."""
    more: list[Series] = []
    for place, (label, rows) in enumerate(layers.items()):
        steps = drawing.finite_numbers([row.get("step") for row in rows])
        floor = drawing.finite_numbers(map(_FLOOR, rows))
        if np.any(np.isfinite(floor)):
            panel.axes.plot(steps, floor, color=styles[label].colour, linestyle="--", linewidth=1.0, alpha=0.9)
            if len(layers) <= LEGEND or place < LEGEND // 2:
                more.append(drawing.series(f"{label}, floor", steps, floor, colour=styles[label].colour, most=20))
    steps, y = _points(_KINDS[-1], whole)
    if np.any(np.isfinite(y)):
        panel.axes.plot(steps, y, color=NETWORK_STYLE.colour, linestyle=NETWORK_STYLE.line, linewidth=1.4)
        more.append(drawing.series("whole network", steps, y, colour=NETWORK_STYLE.colour))
    return DrawnPanel(panel.axes, panel.x_name, panel.y_name, [*panel.series, *more])


def _widen(axes: Axes, least: float) -> None:
    low, high = axes.get_ylim()
    if high - low < least:
        axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)


def _layer_name(label: str) -> str:
    """Return the name of a layer for the legend; a long one keeps both ends."""
    name = drawing.clean(label).removesuffix(".weight")
    return name if len(name) <= 26 else f"{name[:13]}…{name[-12:]}"


def _floors(layers: Mapping[str, Sequence[ResultRow]]) -> list[float]:
    return [value for rows in layers.values() for row in rows if np.isfinite(value := _FLOOR(row))]


def _caption(kinds: Sequence[_Kind], layers: Mapping[str, Sequence[ResultRow]]) -> str:
    sentences = ["Measured on the momentum M of each layer and its update O during training."]
    if kinds[0] is _KINDS[0]:
        sentences.append(
            "The residual is shown as 1 − δ on a log axis, which distinguishes residuals near 1; higher is better."
        )
    definitions = {"descent ρ": "ρ = ⟨M, O⟩/‖M‖_*", "gain s": "s = ‖O‖_op"}
    defined = [definitions[kind.name] for kind in kinds if kind.name in definitions]
    if defined:
        sentences.append(f"{', '.join(defined)}.")
    if kinds[-1] is _KINDS[-1] and _floors(layers):
        sentences.append("Dashed: the alignment that is guaranteed for every matrix of that shape.")
    if len(layers) > LEGEND:
        sentences.append(f"All {len(layers)} layers are drawn; the legend has the first {LEGEND}.")
    return " ".join(sentences)


def _alt(kinds: Sequence[_Kind], layers: Mapping[str, Sequence[ResultRow]]) -> str:
    ends = []
    for kind in kinds:
        last = [(float(y[np.isfinite(y)][-1]), _layer_name(label)) for label, rows in layers.items()
                if np.any(np.isfinite(y := _points(kind, rows)[1]))]  # fmt: skip
        low, high = f"{min(last)[0]:.3g}", f"{max(last)[0]:.3g}"
        ends.append(f"{kind.name} {low}" if low == high else f"{kind.name} {low} ({min(last)[1]}) to {high}")
    count = "one layer" if len(layers) == 1 else f"{len(layers)} layers, lowest and highest"
    text = f"At the end, of {count}: {'; '.join(ends)}."
    floors = _floors(layers) if kinds[-1] is _KINDS[-1] else []
    if not floors:
        return text
    low, high = f"{min(floors):.3g}", f"{max(floors):.3g}"
    return f"{text} The floor of the alignment is {low if low == high else f'{low} to {high}'}."
