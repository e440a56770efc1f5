"""Loss over training: train and test, by epoch and by seconds (Kim & Oh 2026, Figures 1–8, 10 and 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from muonlab.lab.runner.timing import UNITS, ClockName, unit_name, unit_symbol
from muonlab.polynomials.base import Array
from muonlab.report.curves import Curve
from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import DrawnPanel
from muonlab.report.figures.style import CurveStyle, curve_styles
from muonlab.report.values import Figure, Series

LEGEND, HOVER, DRAWN = 12, 40, 200
"""Most curves in the legend, most curves with hover data for all of them, and most points of a drawn line."""

METRICS = {"train_loss": "training loss", "test_loss": "test loss"}
AXES = ("epoch", "seconds")
Curves = Mapping[tuple[str, str], Sequence[Curve]]


def training_figure(name: str, title: str, curves: Curves, clock: ClockName = "wall") -> Figure | None:
    """Return training loss on the left and test loss on the right, by epoch above and by seconds below.

    Args:
        name: name of the figure.
        title: title of the figure.
        curves: keyed by (``"train_loss"`` or ``"test_loss"``, ``"epoch"`` or ``"seconds"``); empty rows and columns are
            left out.
        clock: the clock of the seconds.

    Returns:
        The figure, or None if no curve has a finite value.
    """
    finite = {key: [curve for curve in group if _is_finite(curve)] for key, group in curves.items()}
    columns = [metric for metric in METRICS if any(finite.get((metric, across)) for across in AXES)]
    rows = [across for across in AXES if any(finite.get((metric, across)) for metric in METRICS)]
    if not columns:
        return None
    labels = list(dict.fromkeys(curve.label for group in finite.values() for curve in group))
    styles = curve_styles(labels)
    with drawing.new_canvas(
        0.35 + 2.35 * len(rows), 0.5 * drawing.WIDTH * (1 + 0.3 * (2 - len(columns))) * len(columns)
    ) as canvas:
        panels, handles = [], dict[str, Artist]()
        grid = canvas.subplots(len(rows), len(columns), squeeze=False)
        for (i, across), (j, metric) in ((r, c) for r in enumerate(rows) for c in enumerate(columns)):
            names = {"epoch": "epoch", "seconds": f"{UNITS[clock]} of training"}[across], METRICS[metric]
            panel = _panel(grid[i, j], finite.get((metric, across), []), styles, names, handles)
            if panel is not None:
                panels.append(panel)
        drawing.legend(canvas, [(label, handles[label]) for label in labels[:LEGEND]])
        caption = _caption(finite, labels, [curve.label for group in curves.values() for curve in group], clock)
        return drawing.to_figure(canvas, panels, name=name, title=title, alt=_alt(finite, clock), caption=caption)


def _panel(
    axes: Axes,
    curves: Sequence[Curve],
    styles: Mapping[str, CurveStyle],
    names: tuple[str, str],
    handles: dict[str, Artist],
) -> DrawnPanel | None:
    if not curves:
        axes.set_axis_off()
        axes.text(0.5, 0.5, f"no {names[1]} by {names[0]}", ha="center", va="center", transform=axes.transAxes)
        return None
    drawing.name_axes(axes, *names)
    shown, order = list(styles)[:LEGEND], {label: place for place, label in enumerate(styles)}
    series: list[Series] = []
    for curve in curves:
        x, mean, std = _values(curve)
        style, place = styles[curve.label], order[curve.label]
        drawn = drawing.spaced_indices(len(x), DRAWN if len(styles) <= HOVER else 80)
        if std is not None and len(styles) <= LEGEND:
            _band(axes, x[drawn], mean[drawn], std[drawn], style)
        line = drawing.draw_curve(axes, x[drawn], mean[drawn], style, thin=len(styles) > LEGEND, shift=place)
        handles.setdefault(curve.label, line)
        if len(styles) <= HOVER or curve.label in shown:
            series.append(drawing.series(curve.label, x, mean, std, colour=style.colour))
    return DrawnPanel(axes, *names, series)


def _values(curve: Curve) -> tuple[Array, Array, Array | None]:
    x, mean = drawing.finite_numbers(curve.x), drawing.finite_numbers(curve.mean)
    return x, mean, None if curve.std is None or curve.runs < 2 else drawing.finite_numbers(curve.std)


def _is_finite(curve: Curve) -> bool:
    x, mean, _ = _values(curve)
    return bool(np.any(np.isfinite(x) & np.isfinite(mean)))


def _band(axes: Axes, x: Array, mean: Array, std: Array, style: CurveStyle) -> None:
    low, high = mean - std, mean + std
    drawable = np.isfinite(low) & np.isfinite(high) & np.isfinite(x)
    axes.fill_between(x, low, high, where=drawable.tolist(), color=style.colour, alpha=0.16, linewidth=0)


def _caption(finite: Curves, labels: Sequence[str], given: Sequence[str], clock: ClockName) -> str:
    runs = sorted({curve.runs for group in finite.values() for curve in group})
    counts = str(runs[0]) if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    sentences = [
        "One run for each curve." if runs == [1] else f"Mean over {counts} runs; bands are ± one standard deviation."
    ]
    if any(across == "seconds" and group for (_, across), group in finite.items()):
        sentences.append(f"Times are {unit_name(clock)} of training, without evaluation.")
    if len(labels) > LEGEND:
        sentences = [sentence.replace("; bands are ± one standard deviation", "") for sentence in sentences]
        sentences.append(f"All {len(labels)} curves are drawn; the legend has the first {LEGEND}.")
    missing = [label for label in dict.fromkeys(given) if label not in labels]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        names = ", ".join(drawing.shorten(label) for label in missing[:5])
        sentences.append(f"Not drawn, because they have no finite value: {names}{more}.")
    return " ".join(sentences)


def _alt(finite: Curves, clock: ClockName) -> str:
    sentences = []
    for metric, name in METRICS.items():
        across = next((across for across in AXES if finite.get((metric, across))), None)
        if across:
            sentences.append(f"Final {name}: {drawing.describe_values([_last(c) for c in finite[metric, across]])}.")
    seconds = [(curve.label, float(curve.x[-1])) for metric in METRICS for curve in finite.get((metric, "seconds"), ())]
    if seconds:
        slow, fast = max(seconds, key=lambda pair: pair[1]), min(seconds, key=lambda pair: pair[1])
        unit = unit_symbol(clock)
        sentences.append(
            f"Training took from {fast[1]:.3g} {unit} ({drawing.shorten(fast[0], 40)}) to {slow[1]:.3g} {unit} "
            f"({drawing.shorten(slow[0], 40)})."
        )
    return " ".join(sentences)


def _last(curve: Curve) -> tuple[str, float]:
    mean = drawing.finite_numbers(curve.mean)
    return curve.label, float(mean[np.isfinite(mean)][-1])
