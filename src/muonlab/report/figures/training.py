"""Loss over training: train and test, by epoch and by seconds (Kim & Oh 2026, Figures 1–8, 10 and 11)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from muonlab.lab.runner.timing import UNITS, ClockName
from muonlab.report.curves import Curve
from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import Array, Traced
from muonlab.report.figures.style import Look, looks
from muonlab.report.units import full_name, symbol
from muonlab.report.values import Figure, Series

LEGEND, HOVER, DRAWN = 12, 40, 200
"""Curves in the legend, curves up to which all have hover data, and points of a drawn line."""

METRICS = {"train_loss": "training loss", "test_loss": "test loss"}
PLACES = ("epoch", "seconds")


Curves = Mapping[tuple[str, str], Sequence[Curve]]


def training_figure(name: str, title: str, curves: Curves, clock: ClockName = "wall") -> Figure | None:
    """Return training loss on the left and test loss on the right, by epoch above and by seconds below.

    Args:
        name: of the figure.
        title: of the figure.
        curves: keyed by (``"train_loss"`` or ``"test_loss"``, ``"epoch"`` or ``"seconds"``); rows and columns that have
            none are left out.
        clock: that the seconds are of.
    """
    sound = {key: [curve for curve in some if _finite(curve)] for key, some in curves.items()}
    columns = [metric for metric in METRICS if any(sound.get((metric, across)) for across in PLACES)]
    rows = [across for across in PLACES if any(sound.get((metric, across)) for metric in METRICS)]
    if not columns:
        return None
    labels = list(dict.fromkeys(curve.label for some in sound.values() for curve in some))
    how = looks(labels)
    with drawing.sheet(
        0.35 + 2.35 * len(rows), 0.5 * drawing.WIDTH * (1 + 0.3 * (2 - len(columns))) * len(columns)
    ) as canvas:
        panels, handles = [], dict[str, Artist]()
        grid = canvas.subplots(len(rows), len(columns), squeeze=False)
        for (i, across), (j, metric) in ((r, c) for r in enumerate(rows) for c in enumerate(columns)):
            names = {"epoch": "epoch", "seconds": f"{UNITS[clock]} of training"}[across], METRICS[metric]
            panel = _panel(grid[i, j], sound.get((metric, across), []), how, names, handles)
            if panel is not None:
                panels.append(panel)
        drawing.legend(canvas, [(label, handles[label]) for label in labels[:LEGEND]])
        words = _caption(sound, labels, [curve.label for some in curves.values() for curve in some], clock)
        return drawing.finish(canvas, panels, name=name, title=title, alt=_alt(sound, clock), caption=words)


def _panel(
    axes: Axes,
    curves: Sequence[Curve],
    how: Mapping[str, Look],
    names: tuple[str, str],
    handles: dict[str, Artist],
) -> Traced | None:
    if not curves:
        axes.set_axis_off()
        axes.text(0.5, 0.5, f"no {names[1]} by {names[0]}", ha="center", va="center", transform=axes.transAxes)
        return None
    drawing.name_axes(axes, *names)
    shown, order = list(how)[:LEGEND], {label: place for place, label in enumerate(how)}
    found: list[Series] = []
    for curve in curves:
        x, mean, std = _values(curve)
        look, place = how[curve.label], order[curve.label]
        drawn = drawing.thinned(len(x), DRAWN if len(how) <= HOVER else 80)
        if std is not None and len(how) <= LEGEND:
            _band(axes, x[drawn], mean[drawn], std[drawn], look)
        line = drawing.trace(axes, x[drawn], mean[drawn], look, thin=len(how) > LEGEND, shift=place)
        handles.setdefault(curve.label, line)
        if len(how) <= HOVER or curve.label in shown:
            found.append(drawing.series(curve.label, x, mean, std, colour=look.colour))
    return Traced(axes, *names, found)


def _values(curve: Curve) -> tuple[Array, Array, Array | None]:
    x, mean = drawing.numbers(curve.x), drawing.numbers(curve.mean)
    return x, mean, None if curve.std is None or curve.runs < 2 else drawing.numbers(curve.std)


def _finite(curve: Curve) -> bool:
    x, mean, _ = _values(curve)
    return bool(np.any(np.isfinite(x) & np.isfinite(mean)))


def _band(axes: Axes, x: Array, mean: Array, std: Array, look: Look) -> None:
    low, high = mean - std, mean + std
    sound = np.isfinite(low) & np.isfinite(high) & np.isfinite(x)
    axes.fill_between(x, low, high, where=sound.tolist(), color=look.colour, alpha=0.16, linewidth=0)


def _caption(sound: Curves, labels: Sequence[str], given: Sequence[str], clock: ClockName) -> str:
    runs = sorted({curve.runs for some in sound.values() for curve in some})
    counts = str(runs[0]) if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    words = [
        "One run for each curve." if runs == [1] else f"Mean over {counts} runs; bands are ± one standard deviation."
    ]
    if any(across == "seconds" and some for (_, across), some in sound.items()):
        words.append(f"Times are {full_name(clock)} of training alone, without evaluation.")
    if len(labels) > LEGEND:
        words = [word.replace("; bands are ± one standard deviation", "") for word in words]
        words.append(f"All {len(labels)} curves are drawn; the legend has the first {LEGEND}.")
    missing = [label for label in dict.fromkeys(given) if label not in labels]
    if missing:
        words.append(
            f"Without a finite value, and not drawn: {', '.join(drawing.short(one) for one in missing[:5])}"
            f"{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}."
        )
    return " ".join(words)


def _alt(sound: Curves, clock: ClockName) -> str:
    words = []
    for metric, said in METRICS.items():
        across = next((across for across in PLACES if sound.get((metric, across))), None)
        if across:
            words.append(f"Final {said}: {drawing.listed([_last(c) for c in sound[metric, across]])}.")
    seconds = [_last_place(c) for some in (sound.get((m, "seconds"), ()) for m in METRICS) for c in some]
    if seconds:
        slow, fast = max(seconds, key=lambda pair: pair[1]), min(seconds, key=lambda pair: pair[1])
        unit = symbol(clock)
        words.append(
            f"Training took from {fast[1]:.3g} {unit} ({drawing.short(fast[0], 40)}) to {slow[1]:.3g} {unit} "
            f"({drawing.short(slow[0], 40)})."
        )
    return " ".join(words)


def _last(curve: Curve) -> tuple[str, float]:
    mean = drawing.numbers(curve.mean)
    return curve.label, float(mean[np.isfinite(mean)][-1])


def _last_place(curve: Curve) -> tuple[str, float]:
    x = drawing.numbers(curve.x)
    return curve.label, max((float(value) for value in x if math.isfinite(value)), default=0.0)
