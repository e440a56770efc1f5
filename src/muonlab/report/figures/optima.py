"""Training loss at the end by learning rate and by momentum, with the best of each, for the study lr-by-steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from muonlab.lab.grid_optima import Runs, least_losses
from muonlab.polynomials.base import Array
from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import DrawnPanel
from muonlab.report.figures.style import CurveStyle, curve_styles
from muonlab.report.values import Figure, Series

TITLE = "Training loss at the end by learning rate and by momentum"
RunsByOptimizer = Mapping[tuple[str, str], Mapping[int, Runs]]
"""The runs of :func:`muonlab.lab.grid_optima.runs_by_optimizer`: by network and optimizer, and by seed."""
LossBySetting = tuple[list[float], Array, Array]
"""Values of one setting, and the mean and standard deviation over seeds of the least loss at each."""


def optima_figure(runs: RunsByOptimizer) -> Figure | None:
    """Return the least training loss by learning rate and by momentum, a row for each network; None without runs."""
    networks = list(dict.fromkeys(network for network, _ in runs))
    if not networks:
        return None
    styles = curve_styles(dict.fromkeys(optimizer for _, optimizer in runs))
    panels: list[DrawnPanel] = []
    handles: dict[str, Artist] = {}
    with drawing.new_canvas(2.6 * len(networks)) as canvas:
        grid = canvas.subplots(len(networks), 2, squeeze=False)
        for row, network in zip(grid, networks, strict=True):
            for axis, axes in enumerate(row):
                curves = {
                    name: _loss_by_setting(by_seed, axis) for (of, name), by_seed in runs.items() if of == network
                }
                panel, drawn = _panel(axes, network, axis, curves, styles)
                panels.append(panel)
                handles |= drawn
        drawing.legend(canvas, [*handles.items()])
        caption = (
            "Training loss at the end, mean over seeds (bars: one standard deviation), for each learning rate with the "
            "momentum of least loss, and for each momentum with the learning rate of least loss."
        )
        return drawing.to_figure(canvas, panels, name="optima", title=TITLE, alt=_alt(runs), caption=caption)


def _loss_by_setting(by_seed: Mapping[int, Runs], axis: int) -> LossBySetting:
    least = [least_losses(runs, axis) for runs in by_seed.values()]
    places = sorted(set.intersection(*(set(of_seed) for of_seed in least)))
    losses = [[of_seed[place] for of_seed in least] for place in places]
    std = [statistics.stdev(values) if len(values) > 1 else math.nan for values in losses]
    return places, np.array([statistics.fmean(values) for values in losses]), np.array(std)


def _panel(
    axes: Axes, network: str, axis: int, curves: Mapping[str, LossBySetting], styles: Mapping[str, CurveStyle]
) -> tuple[DrawnPanel, dict[str, Artist]]:
    x_name = f"{network}: {'momentum' if axis else 'learning rate'}"
    drawing.name_axes(axes, x_name, "training loss", x_scale="log")
    handles: dict[str, Artist] = {}
    series: list[Series] = []
    for optimizer, (places, mean, std) in curves.items():
        style = styles[optimizer]
        x = 1.0 / (1.0 - np.array(places)) if axis else np.array(places)  # momenta at the gradients that they average
        axes.errorbar(x, mean, std, color=style.colour, linestyle="none", elinewidth=1.0, capsize=2.5)
        (line,) = axes.plot(x, mean, color=style.colour, marker=style.marker, linestyle=style.line)
        handles[optimizer] = line
        series.append(drawing.series(optimizer, x, mean, std, colour=style.colour))
    _ticks(axes, sorted({place for places, *_ in curves.values() for place in places}), axis)
    numbers = "1/(1 − momentum)" if axis else "learning rate"
    return DrawnPanel(axes, f"{network}: {numbers}", "training loss", series), handles


def _ticks(axes: Axes, places: Sequence[float], axis: int) -> None:
    axes.xaxis.set_major_locator(FixedLocator([1.0 / (1.0 - place) if axis else place for place in places]))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{place:g}" for place in places]))
    axes.xaxis.set_minor_locator(NullLocator())


def _alt(runs: RunsByOptimizer) -> str:
    """Return the best learning rate of each optimizer in words."""
    best = []
    for (network, optimizer), by_seed in runs.items():
        places, mean, _ = _loss_by_setting(by_seed, 0)
        if places:
            best.append(f"{drawing.shorten(optimizer, 20)} on {drawing.shorten(network, 20)} {places[mean.argmin()]:g}")
    return f"Learning rates of least training loss: {', '.join(best)}."
