"""Growth of the gradient's nuclear norm with the rank (Kim & Oh 2026, Figure 9 and Table 8)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter, NullLocator

from muonlab.lab.slopes import RankSlopes, rank_slopes
from muonlab.polynomials.base import Array
from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import DrawnPanel
from muonlab.report.figures.style import CurveStyle, curve_styles
from muonlab.report.values import Figure, Series

TITLE = "Gradient norm against the rank"
Norms = Mapping[str, Mapping[int, Sequence[float]]]


@dataclass(frozen=True)
class _Growth:
    label: str
    ranks: Array
    mean: Array
    std: Array
    """NaN at ranks with a single run."""
    slopes: RankSlopes | None


def rank_figure(norms: Norms) -> Figure | None:
    """Return ``‖∇f‖_*`` and ``‖∇f‖_*/√r`` against r on log axes, with fitted lines; None without positive norms.

    Args:
        norms: by optimizer and rank, one norm per seed.
    """
    growths = [growth for label, by_rank in norms.items() if (growth := _growth(label, by_rank)) is not None]
    if not growths:
        return None
    styles = curve_styles([growth.label for growth in growths])
    with drawing.new_canvas(2.9) as canvas:
        grid = canvas.subplots(1, 2)
        first, handles = _panel(grid[0], growths, styles, normalised=False)
        second, _ = _panel(grid[1], growths, styles, normalised=True)
        drawing.legend(canvas, [(_entry(growth), handle) for growth, handle in zip(growths, handles, strict=True)])
        several = np.concatenate([np.isfinite(growth.std) for growth in growths])
        seeds = " with ± one standard deviation over seeds" if several.any() else ""
        seeds += " for ranks with several runs" if several.any() and not several.all() else ""
        caption = (
            f"Gradient norm of the recorded layer, mean over epochs{seeds}; lines are least-squares fits of logarithms."
            f" The legend has the exponents of r in the left and in the right panel; they differ by one half."
        )
        return drawing.to_figure(canvas, [first, second], name="rank", title=TITLE, alt=_alt(growths), caption=caption)


def _growth(label: str, by_rank: Mapping[int, Sequence[float]]) -> _Growth | None:
    positive: dict[int, list[float]] = {}
    for rank in sorted(by_rank):
        values = [float(value) for value in drawing.finite_numbers(by_rank[rank], "log") if math.isfinite(value)]
        if values and rank > 0:
            positive[rank] = values
    if not positive:
        return None
    means = [statistics.fmean(values) for values in positive.values()]
    std = [statistics.stdev(values) if len(values) > 1 else math.nan for values in positive.values()]
    # the table of slopes fits the same points
    runs = [(rank, value) for rank, values in positive.items() for value in values]
    slopes = rank_slopes([rank for rank, _ in runs], [value for _, value in runs]) if len(positive) > 1 else None
    return _Growth(label, np.array(list(positive), float), np.array(means), np.array(std), slopes)


def _panel(
    axes: Axes, growths: Sequence[_Growth], styles: Mapping[str, CurveStyle], *, normalised: bool
) -> tuple[DrawnPanel, list[Artist]]:
    x_name, y_name = "rank r", "nuclear norm of ∇f, over √r" if normalised else "nuclear norm of ∇f"
    drawing.name_axes(axes, x_name, y_name, x_scale="log", y_scale="log")
    handles: list[Artist] = []
    series: list[Series] = []
    for growth in growths:
        style, by = styles[growth.label], np.sqrt(growth.ranks) if normalised else np.ones_like(growth.ranks)
        y, std = growth.mean / by, growth.std / by
        bars = np.stack([np.minimum(std, 0.9 * y), std])  # a log axis cannot show a bar that ends at zero
        axes.errorbar(growth.ranks, y, bars, color=style.colour, linestyle="none", elinewidth=1.0, capsize=2.5)
        (points,) = axes.plot(growth.ranks, y, color=style.colour, marker=style.marker, linestyle="none", markersize=6)
        handles.append(points)
        if growth.slopes is not None:
            slope = growth.slopes.normalised if normalised else growth.slopes.raw
            log_r, log_y = np.log(growth.ranks), np.log(y)
            fit = np.exp(log_y.mean() + slope * (log_r - log_r.mean()))
            axes.plot(growth.ranks, drawing.finite_numbers(fit, "log"), color=style.colour, linewidth=1.4)
        series += _series(growth, y, std, style.colour)
    _rank_ticks(axes, sorted({int(rank) for growth in growths for rank in growth.ranks}))
    return DrawnPanel(axes, x_name, y_name, series), handles


def _series(growth: _Growth, y: Array, std: Array, colour: str) -> list[Series]:
    """Return the points; if some ranks have a single run, these are a separate series without deviation."""
    several = np.isfinite(std)
    if several.all() or not several.any():
        return [drawing.series(growth.label, growth.ranks, y, std, colour=colour)]
    return [
        drawing.series(growth.label, growth.ranks[several], y[several], std[several], colour=colour),
        drawing.series(f"{growth.label}, one run", growth.ranks[~several], y[~several], colour=colour),
    ]


def _rank_ticks(axes: Axes, ranks: Sequence[int]) -> None:
    """Put ticks at the ranks that were run; of many, at those that are far enough apart."""
    kept: list[int] = []
    apart = 1.0 if len(ranks) == 1 else max((ranks[-1] / ranks[0]) ** (1 / 8), 1.01)
    for rank in ranks:
        if not kept or rank >= kept[-1] * apart:
            kept.append(rank)
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_major_formatter(FixedFormatter([str(rank) for rank in kept]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _entry(growth: _Growth) -> str:
    if growth.slopes is None:
        return growth.label
    suffix = f": slopes {growth.slopes.raw:.2f}, {growth.slopes.normalised:.2f}".replace("-", "−")
    return drawing.shorten(growth.label, drawing.MOST_LABEL - len(suffix)) + suffix


def _alt(growths: Sequence[_Growth]) -> str:
    slopes = [(growth.label, growth.slopes.raw) for growth in growths if growth.slopes is not None]
    ends = [
        f"{drawing.shorten(growth.label, 30)} from {growth.mean[0]:.3g} at r = {growth.ranks[0]:g} to "
        f"{growth.mean[-1]:.3g} at r = {growth.ranks[-1]:g}"
        for growth in growths[:5]
    ]
    fits = f"Slopes on log axes: {drawing.describe_values(slopes)}. " if slopes else ""
    return f"{fits}Gradient norms: {'; '.join(ends)}."
