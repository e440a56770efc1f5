"""Curves of a study: mean ± one standard deviation over seeds, by epoch and by seconds of training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from muonlab import _checks
from muonlab.report.values import Spread

Array = NDArray[np.float64]
Across = Literal["epoch", "seconds"]
Rows = Sequence[Mapping[str, Any]]
"""Rows of one run, as ``metrics.jsonl`` has them."""
GRID = 200
"""Places of the common grid of seconds."""
SAME = 1e-9
"""Epochs that differ by less are one."""


@dataclass(frozen=True)
class Curve:
    """A number over training: its mean over runs at each place, and its spread.

    Args:
        label: what was trained, in words.
        x: epochs, or seconds of training, ascending.
        mean: over the runs.
        std: standard deviation over the runs (n - 1 below the line); None for a single run.
        runs: how many there are.
    """

    label: str
    x: Array
    mean: Array
    std: Array | None
    runs: int


def spread(values: Sequence[float]) -> Spread:
    """Return mean and standard deviation of a number over runs.

    Example:
        >>> spread([1.0, 3.0])
        Spread(mean=2.0, std=1.4142135623730951, runs=2)
    """
    if not values:
        raise ValueError("a mean must have a value, got none: leave out what has no runs")
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), std, len(values))


def trace(rows: Rows, metric: str, across: Across) -> tuple[Array, Array]:
    """Return the places and values of one run, ascending; rows without a finite value are left out."""
    pairs: list[tuple[Any, Any]] = [(row.get(across), row.get(metric)) for row in rows]
    sound = sorted({float(x): float(y) for x, y in pairs if _finite(x) and _finite(y)}.items())
    return np.array([x for x, _ in sound]), np.array([y for _, y in sound])


def by_epoch(label: str, runs: Sequence[Rows], metric: str, *, smoothing: int = 1) -> Curve | None:
    """Return a curve over epochs, at those where every run has a value; None if there are none.

    Args:
        label: of the curve.
        runs: rows of each run.
        metric: a name in the rows, such as ``"test_loss"``.
        smoothing: evaluations in a running mean of each run; 1 is none.
    """
    traces = [trace(rows, metric, "epoch") for rows in runs]
    if not traces:
        return None
    shared = np.array([x for x in traces[0][0] if all(_near(others, x) for others, _ in traces)])
    return _curve(label, shared, np.array([smoothed(y, smoothing)[_places(xs, shared)] for xs, y in traces]))


def by_time(label: str, runs: Sequence[Rows], metric: str, *, points: int = GRID, smoothing: int = 1) -> Curve | None:
    """Return a curve over seconds of training, on a common grid where every run has data; None if there is none.

    Between two evaluations a run is interpolated linearly; it is never extended beyond its own.
    """
    traces = [trace(rows, metric, "seconds") for rows in runs]
    if not traces or any(not len(x) for x, _ in traces):
        return None
    first, last = max(x[0] for x, _ in traces), min(x[-1] for x, _ in traces)
    if first > last:
        return None
    if len(traces) == 1:  # nothing to bring together: the evaluations themselves
        return _curve(label, traces[0][0], smoothed(traces[0][1], smoothing)[None])
    grid = np.linspace(first, last, _checks.integer("points", points, at_least=2)) if first < last else np.array([last])
    return _curve(label, grid, np.array([np.interp(grid, x, smoothed(y, smoothing)) for x, y in traces]))


def smoothed(values: Array, width: int) -> Array:
    """Return the running mean of the last ``width`` values, fewer at the start; 1 changes nothing.

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


def at_seconds(runs: Sequence[Rows], metric: str, seconds: Sequence[float]) -> list[Spread | None]:
    """Return a metric at moments of training, mean over runs; a run that has ended keeps its last value.

    Before the first evaluation of any run there is no value: None.
    """
    traces = [trace(rows, metric, "seconds") for rows in runs]
    if not traces or any(not len(x) for x, _ in traces):
        return [None] * len(seconds)
    first = max(x[0] for x, _ in traces)
    return [
        spread([float(np.interp(moment, x, y)) for x, y in traces]) if moment >= first else None for moment in seconds
    ]


def slowest(groups: Iterable[Sequence[Rows]]) -> float | None:
    """Return the seconds of training of the slowest run; None if no run has any."""
    seconds = [row["seconds"] for runs in groups for rows in runs for row in rows if _finite(row.get("seconds"))]
    return max(seconds, default=None)


def at_fractions(
    groups: Mapping[str, Sequence[Rows]], metric: str, fractions: Sequence[float], *, of: Iterable[str] | None = None
) -> tuple[list[float], dict[str, list[Spread | None]]]:
    """Return the moments that are such fractions of the slowest run, and a metric of each group at them.

    Args:
        groups: runs by label.
        metric: a name in the rows.
        fractions: of the whole, between 0 and 1.
        of: labels among which the slowest run is looked for; None is all.
    """
    for fraction in fractions:
        _checks.real("fraction", fraction, low=0.0, high=1.0)
    whole = slowest(groups[label] for label in (groups if of is None else of) if label in groups)
    if whole is None:
        return [], {label: [] for label in groups}
    moments = [fraction * whole for fraction in fractions]
    return moments, {label: at_seconds(runs, metric, moments) for label, runs in groups.items()}


def time_to(rows: Rows, metric: str, target: float) -> float | None:
    """Return the seconds of training after which a metric of a run is first at or below a target, or None if never.

    Between two evaluations it is interpolated linearly.

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
    """Return the index of the first place that is not below x, but for rounding."""
    return np.searchsorted(ascending, x - SAME)


def _near(ascending: Array, x: float) -> bool:
    i = int(_places(ascending, np.asarray(x)))
    return i < len(ascending) and bool(abs(ascending[i] - x) <= SAME)


def _finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float is
        return False
