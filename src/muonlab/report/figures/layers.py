"""Certificates of every layer over training: residual, polar error and its factor, descent, gain and alignment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import Array, Traced
from muonlab.report.figures.plain_svg import INK
from muonlab.report.figures.style import Look, looks
from muonlab.report.values import Figure, Scale, Series

Row = Mapping[str, Any]
LEGEND, HOVER, DRAWN = 12, 40, 300
WHOLE = Look("#777788", "", "-.")


@dataclass(frozen=True)
class _Kind:
    """A panel: how it is named, what of a row it shows, and the least height of its axis, lest rounding fill it."""

    name: str
    scale: Scale
    value: Callable[[Row], float]
    least: float = 0.0


def _field(name: str) -> Callable[[Row], float]:
    return lambda row: drawing.number(row.get(name))


_KINDS = (
    _Kind("1 − residual δ", "log", lambda row: 1 - drawing.number(row.get("delta"))),
    _Kind("polar error ε", "linear", _field("epsilon")),
    _Kind("factor χ", "log", _field("chi")),
    _Kind("descent ρ", "linear", _field("descent"), least=0.01),
    _Kind("gain s", "linear", _field("op_norm"), least=0.01),
    _Kind("alignment ρ/s", "linear", _field("alignment"), least=0.01),
)
_FLOOR = _field("alignment_floor")


def layers_figure(
    rows: Sequence[Row], *, name: str = "layers", title: str = "Certificates of every layer over training"
) -> Figure | None:
    """Return δ_q (as 1 − δ_q, on a log axis), ε_q, χ_q, ρ, s and ρ/s with its floor over steps, a line for each layer.

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
            entries += [("floor", Line2D([], [], color=INK, linestyle="--", linewidth=1))] if _floors(layers) else []
        for axes, kind in zip(grid, kinds, strict=False):
            _widen(axes, kind.least)
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


def _widen(axes: Axes, least: float) -> None:
    low, high = axes.get_ylim()
    if high - low < least:
        axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)


def _layer_words(label: str) -> str:
    """Return a layer's name as the legend has it: both ends of a long one tell it from others."""
    words = drawing.clean(label).removesuffix(".weight")
    return words if len(words) <= 26 else f"{words[:13]}…{words[-12:]}"


def _floors(layers: Mapping[str, Sequence[Row]]) -> list[float]:
    return [value for rows in layers.values() for row in rows if np.isfinite(value := _FLOOR(row))]


def _caption(kinds: Sequence[_Kind], layers: Mapping[str, Sequence[Row]]) -> str:
    words = ["Measured on the momentum M of each layer and its update O while training."]
    if kinds[0] is _KINDS[0]:
        words.append(
            "The residual is shown as 1 − δ on a log axis, where residuals near 1 can be told apart: higher is better."
        )
    said = {"descent ρ": "ρ = ⟨M, O⟩/‖M‖_*", "gain s": "s = ‖O‖_op"}
    defined = [said[kind.name] for kind in kinds if kind.name in said]
    if defined:
        words.append(f"{', '.join(defined)}.")
    if kinds[-1] is _KINDS[-1] and _floors(layers):
        words.append("Dashed: what exact arithmetic guarantees of the alignment, for every matrix of that shape.")
    if len(layers) > LEGEND:
        words.append(f"All {len(layers)} layers are drawn; the legend has the first {LEGEND}.")
    return " ".join(words)


def _alt(kinds: Sequence[_Kind], layers: Mapping[str, Sequence[Row]]) -> str:
    ends = []
    for kind in kinds:
        last = [(float(y[np.isfinite(y)][-1]), _layer_words(label)) for label, rows in layers.items()
                if np.any(np.isfinite(y := _points(kind, rows)[1]))]  # fmt: skip
        low, high = f"{min(last)[0]:.3g}", f"{max(last)[0]:.3g}"
        ends.append(f"{kind.name} {low}" if low == high else f"{kind.name} {low} ({min(last)[1]}) to {high}")
    count = "one layer" if len(layers) == 1 else f"{len(layers)} layers, lowest and highest"
    words = f"At the end, of {count}: {'; '.join(ends)}."
    floors = _floors(layers) if kinds[-1] is _KINDS[-1] else []
    if not floors:
        return words
    low, high = f"{min(floors):.3g}", f"{max(floors):.3g}"
    return f"{words} The floor of the alignment is {low if low == high else f'{low} to {high}'}."
