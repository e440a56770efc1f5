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
from muonlab.report.figures import drawing
from muonlab.report.figures.drawing import Array, Traced
from muonlab.report.figures.style import Look, looks
from muonlab.report.values import Figure, Series

Norms = Mapping[str, Mapping[int, Sequence[float]]]


@dataclass(frozen=True)
class _Growth:
    label: str
    ranks: Array
    mean: Array
    std: Array
    """NaN where there is one run."""
    slopes: RankSlopes | None


def rank_figure(norms: Norms, *, name: str = "rank", title: str = "Gradient norm against the rank") -> Figure | None:
    """Return ``‖∇f‖_*`` and ``‖∇f‖_*/√r`` against r on log axes, with fitted lines.

    Args:
        norms: by optimizer and rank, one for each seed.
        name: of the figure.
        title: of the figure.
    """
    found = [growth for label, by_rank in norms.items() if (growth := _growth(label, by_rank)) is not None]
    if not found:
        return None
    how = looks([growth.label for growth in found])
    with drawing.sheet(2.9) as canvas:
        grid = canvas.subplots(1, 2)
        first, handles = _panel(grid[0], found, how, normalised=False)
        second, _ = _panel(grid[1], found, how, normalised=True)
        drawing.legend(canvas, [(_entry(one), handle) for one, handle in zip(found, handles, strict=True)])
        several = np.concatenate([np.isfinite(one.std) for one in found])
        seeds = " with ± one standard deviation over seeds" if several.any() else ""
        seeds += " where there are several" if several.any() and not several.all() else ""
        caption = (
            f"Mean over the epochs of the watched layer's gradient norm{seeds}; lines are least-squares fits of "
            f"logarithms. Slopes are the exponents of r on the left and on the right, there less by one half."
        )
        return drawing.finish(canvas, [first, second], name=name, title=title, alt=_alt(found), caption=caption)


def _growth(label: str, by_rank: Mapping[int, Sequence[float]]) -> _Growth | None:
    sound: dict[int, list[float]] = {}
    for rank in sorted(by_rank):
        values = [float(value) for value in drawing.numbers(by_rank[rank], "log") if math.isfinite(value)]
        if values and rank > 0:
            sound[rank] = values
    if not sound:
        return None
    means = [statistics.fmean(values) for values in sound.values()]
    std = [statistics.stdev(values) if len(values) > 1 else math.nan for values in sound.values()]
    runs = [(rank, value) for rank, values in sound.items() for value in values]  # as the table of slopes fits them
    slopes = rank_slopes([rank for rank, _ in runs], [value for _, value in runs]) if len(sound) > 1 else None
    return _Growth(label, np.array(list(sound), float), np.array(means), np.array(std), slopes)


def _panel(
    axes: Axes, found: Sequence[_Growth], how: Mapping[str, Look], *, normalised: bool
) -> tuple[Traced, list[Artist]]:
    x_name, y_name = "rank r", "nuclear norm of ∇f, over √r" if normalised else "nuclear norm of ∇f"
    drawing.name_axes(axes, x_name, y_name, x_scale="log", y_scale="log")
    handles: list[Artist] = []
    series: list[Series] = []
    for one in found:
        look, by = how[one.label], np.sqrt(one.ranks) if normalised else np.ones_like(one.ranks)
        y, std = one.mean / by, one.std / by
        bars = np.stack([np.minimum(std, 0.9 * y), std])  # a bar that ends at zero has no end on a log axis
        axes.errorbar(one.ranks, y, bars, color=look.colour, linestyle="none", elinewidth=1.0, capsize=2.5)
        (points,) = axes.plot(one.ranks, y, color=look.colour, marker=look.marker, linestyle="none", markersize=6)
        handles.append(points)
        if one.slopes is not None:
            slope = one.slopes.normalised if normalised else one.slopes.raw
            log_r, log_y = np.log(one.ranks), np.log(y)
            fit = np.exp(log_y.mean() + slope * (log_r - log_r.mean()))
            axes.plot(one.ranks, drawing.numbers(fit, "log"), color=look.colour, linewidth=1.4)
        series += _series(one, y, std, look.colour)
    _rank_ticks(axes, sorted({int(rank) for one in found for rank in one.ranks}))
    return Traced(axes, x_name, y_name, series), handles


def _series(one: _Growth, y: Array, std: Array, colour: str) -> list[Series]:
    """Return the points; where some ranks have one run only, these are a curve of their own, without a spread."""
    several = np.isfinite(std)
    if several.all() or not several.any():
        return [drawing.series(one.label, one.ranks, y, std, colour=colour)]
    return [
        drawing.series(one.label, one.ranks[several], y[several], std[several], colour=colour),
        drawing.series(f"{one.label}, one run", one.ranks[~several], y[~several], colour=colour),
    ]


def _rank_ticks(axes: Axes, ranks: Sequence[int]) -> None:
    """Mark the ranks that were run; of many, those that stand apart."""
    kept: list[int] = []
    apart = 1.0 if len(ranks) == 1 else max((ranks[-1] / ranks[0]) ** (1 / 8), 1.01)
    for rank in ranks:
        if not kept or rank >= kept[-1] * apart:
            kept.append(rank)
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_major_formatter(FixedFormatter([str(rank) for rank in kept]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _entry(one: _Growth) -> str:
    if one.slopes is None:
        return one.label
    words = f": slopes {one.slopes.raw:.2f}, {one.slopes.normalised:.2f}".replace("-", "−")
    return drawing.short(one.label, drawing.MOST_LABEL - len(words)) + words


def _alt(found: Sequence[_Growth]) -> str:
    slopes = [(one.label, one.slopes.raw) for one in found if one.slopes is not None]
    ends = [f"{drawing.short(one.label, 30)} from {one.mean[0]:.3g} at r = {one.ranks[0]:g} to {one.mean[-1]:.3g} at "
            f"r = {one.ranks[-1]:g}" for one in found[:5]]  # fmt: skip
    fits = f"Slopes on log axes: {drawing.listed(slopes)}. " if slopes else ""
    return f"{fits}Gradient norms: {'; '.join(ends)}."
