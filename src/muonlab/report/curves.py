"""Curves of a study, by epoch and by seconds of training: mean and standard deviation over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from muonlab import _checks
from muonlab.polynomials.base import Array
from muonlab.report.values import MeanStd, ResultRow

Across = Literal["epoch", "seconds"]
Rows = Sequence[ResultRow]
"""The rows of one run, from its ``metrics.jsonl``."""
GRID = 200
"""Points of the common grid of seconds."""
SAME_EPOCH = 1e-9
"""Epochs that differ by less are equal."""


@dataclass(frozen=True)
class Curve:
    """A metric over training.

    Args:
        label: name of the setting.
        x: epochs or seconds of training, ascending; shape (n,).
        mean: mean over the runs; shape (n,).
        std: standard deviation over the runs with n - 1 degrees of freedom, shape (n,); None for a single run.
        runs: number of runs.
    """

    label: str
    x: Array
    mean: Array
    std: Array | None
    runs: int


def mean_std(values: Sequence[float]) -> MeanStd:
    """Return mean and standard deviation of a number over runs (n - 1 degrees of freedom).

    Example:
        >>> mean_std([1.0, 3.0])
        MeanStd(mean=2.0, std=1.4142135623730951, runs=2)
    """
    if not values:
        raise ValueError("a mean must have a value, got none: leave out what has no runs")
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return MeanStd(float(np.mean(values)), std, len(values))


def trace(rows: Rows, metric: str, across: Across) -> tuple[Array, Array]:
    """Return the x values and metric values of one run, ascending in x, without rows that lack a finite value."""
    pairs: list[tuple[Any, Any]] = [(row.get(across), row.get(metric)) for row in rows]
    sound = sorted({float(x): float(y) for x, y in pairs if _finite(x) and _finite(y)}.items())
    return np.array([x for x, _ in sound]), np.array([y for _, y in sound])


def by_epoch(label: str, runs: Sequence[Rows], metric: str, *, smoothing: int = 1) -> Curve | None:
    """Return a curve over the epochs at which every run has a value; None if there are none.

    Args:
        label: name of the curve.
        runs: rows of each run.
        metric: a key of the rows, such as ``"test_loss"``.
        smoothing: number of evaluations in the running mean of each run; 1 does not smooth.
    """
    traces = [trace(rows, metric, "epoch") for rows in runs]
    if not traces:
        return None
    shared = np.array([x for x in traces[0][0] if all(_near(others, x) for others, _ in traces)])
    return _curve(label, shared, np.array([smoothed(y, smoothing)[_places(xs, shared)] for xs, y in traces]))


def by_time(label: str, runs: Sequence[Rows], metric: str, *, points: int = GRID, smoothing: int = 1) -> Curve | None:
    """Return a curve over seconds of training, on an even grid over the range that all runs cover; None if empty.

    Runs are interpolated linearly between evaluations and never extrapolated.
    """
    traces = [trace(rows, metric, "seconds") for rows in runs]
    if not traces or any(not len(x) for x, _ in traces):
        return None
    first, last = max(x[0] for x, _ in traces), min(x[-1] for x, _ in traces)
    if first > last:
        return None
    if len(traces) == 1:  # no common grid is needed
        return _curve(label, traces[0][0], smoothed(traces[0][1], smoothing)[None])
    grid = np.linspace(first, last, _checks.integer("points", points, at_least=2)) if first < last else np.array([last])
    return _curve(label, grid, np.array([np.interp(grid, x, smoothed(y, smoothing)) for x, y in traces]))


def smoothed(values: Array, width: int) -> Array:
    """Return the running mean of the last ``width`` values, of fewer at the start.

    Example:
        >>> smoothed(np.array([1.0, 3.0, 5.0]), 2).tolist()
        [1.0, 2.0, 4.0]
    """
    if _checks.integer("smoothing", width, at_least=1) == 1 or not len(values):
        return values
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - width, 0)
    means: Array = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def at_seconds(runs: Sequence[Rows], metric: str, seconds: Sequence[float]) -> list[MeanStd | None]:
    """Return a metric at given seconds of training, mean over runs; a run that has ended keeps its last value.

    The value is None before the first evaluation of any of the runs.
    """
    traces = [trace(rows, metric, "seconds") for rows in runs]
    if not traces or any(not len(x) for x, _ in traces):
        return [None] * len(seconds)
    first = max(x[0] for x, _ in traces)
    return [
        mean_std([float(np.interp(moment, x, y)) for x, y in traces]) if moment >= first else None for moment in seconds
    ]


def slowest(groups: Iterable[Sequence[Rows]]) -> float | None:
    """Return the seconds of training of the slowest run; None if no row has seconds."""
    seconds = [row["seconds"] for runs in groups for rows in runs for row in rows if _finite(row.get("seconds"))]
    return max(seconds, default=None)


def at_fractions(
    groups: Mapping[str, Sequence[Rows]],
    metric: str,
    fractions: Sequence[float],
    *,
    slowest_of: Iterable[str] | None = None,
) -> tuple[list[float], dict[str, list[MeanStd | None]]]:
    """Return fractions of the slowest run's training time in seconds, and a metric of each group at these times.

    Args:
        groups: runs by label.
        metric: a key of the rows.
        fractions: numbers between 0 and 1.
        slowest_of: labels of the runs among which the slowest one is chosen; None means all.
    """
    for fraction in fractions:
        _checks.real("fraction", fraction, low=0.0, high=1.0)
    whole = slowest(groups[label] for label in (groups if slowest_of is None else slowest_of) if label in groups)
    if whole is None:
        return [], {label: [] for label in groups}
    moments = [fraction * whole for fraction in fractions]
    return moments, {label: at_seconds(runs, metric, moments) for label, runs in groups.items()}


def time_to(rows: Rows, metric: str, target: float) -> float | None:
    """Return the seconds of training after which a metric of a run is first at or below a target; None if never.

    The metric is interpolated linearly between evaluations.

    Example:
        >>> time_to([{"seconds": 0.0, "loss": 2.0}, {"seconds": 4.0, "loss": 1.0}], "loss", 1.5)
        2.0
    """
    x, y = trace(rows, metric, "seconds")
    below = np.flatnonzero(y <= target)
    if not len(below):
        return None
    i = int(below[0])
    if i == 0:
        return float(x[0])
    return float(x[i - 1] + (x[i] - x[i - 1]) * (y[i - 1] - target) / (y[i - 1] - y[i]))


def _curve(label: str, x: Array, values: Array) -> Curve | None:
    if not len(x):
        return None
    std = values.std(axis=0, ddof=1) if len(values) > 1 else None
    return Curve(label, x, values.mean(axis=0), std, len(values))


def _places(ascending: Array, x: Array) -> NDArray[np.intp]:
    """Return the index of the first element that is not below x, up to rounding."""
    return np.searchsorted(ascending, x - SAME_EPOCH)


def _near(ascending: Array, x: float) -> bool:
    i = int(_places(ascending, np.asarray(x)))
    return i < len(ascending) and bool(abs(ascending[i] - x) <= SAME_EPOCH)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
