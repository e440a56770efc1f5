"""Exponents of growth with the rank: log-log slopes, raw and divided by √r (Kim & Oh 2026, Table 8)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from muonlab.lab import paper
from muonlab.lab.runner.results import CellResult, Results

FIRST_COLUMNS = 216
"""Columns of CifarNet's first convolution in its first group as a matrix: 24 channels of 3×3."""


@dataclass(frozen=True)
class RankSlopes:
    """Exponents ω of ``‖∇f‖_* ∝ r^ω`` and of ``‖∇f‖_*/√r``; the second is the first less one half.

    Both have the same standard error, as division by √r shifts every logarithm by a known number.
    """

    raw: float
    normalised: float
    standard_error: float | None


def log_log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent of ``y ∝ x^slope`` by least squares on logarithms.

    Example:
        >>> round(log_log_slope([1, 2, 4], [3, 6, 12]), 6)
        1.0
    """
    points = [float(value) for value in (*x, *y)]
    if len(x) != len(y) or len(set(x)) < 2 or not all(0 < value < math.inf for value in points):
        raise ValueError(
            f"a slope must have finite positive points at two or more places, got x = {list(x)} and y = {list(y)}: "
            f"leave out zero and missing values"
        )
    return statistics.linear_regression([math.log(value) for value in x], [math.log(value) for value in y]).slope


def slope_standard_error(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return the standard error of :func:`log_log_slope` by ordinary least squares, with n - 2 degrees of freedom.

    It is ``√(Σ residual² / (n - 2) / Σ (log x - mean)²)``.

    Args:
        x: positive places, at least two different ones.
        y: positive values, one for each place.

    Returns:
        The standard error, or None with fewer than three points: a line through two points has no residual.

    Example:
        >>> round(slope_standard_error([1, 2, 4], [1, 4, 4]), 6)
        0.57735
        >>> slope_standard_error([1, 2], [1, 4]) is None
        True
    """
    slope = log_log_slope(x, y)
    if len(x) < 3:
        return None
    log_x, log_y = [math.log(value) for value in x], [math.log(value) for value in y]
    mean_x, mean_y = statistics.fmean(log_x), statistics.fmean(log_y)
    residuals = [b - mean_y - slope * (a - mean_x) for a, b in zip(log_x, log_y, strict=True)]
    squares_x = math.fsum((a - mean_x) ** 2 for a in log_x)
    return math.sqrt(math.fsum(r**2 for r in residuals) / (len(x) - 2) / squares_x)


def rank_slopes(ranks: Sequence[int], norms: Sequence[float]) -> RankSlopes:
    """Return both slopes of gradient norms against ranks, each by its own fit (Kim & Oh 2026, Table 8).

    Args:
        ranks: ``min(m, n)`` of the watched layer, one for each run; runs with several seeds repeat a rank.
        norms: its epoch mean of ``‖∇f‖_*`` in each run.

    Example:
        >>> rank_slopes([16, 64], [1.0, 2.0])
        RankSlopes(raw=0.5, normalised=0.0, standard_error=None)
    """
    normalised = [norm / math.sqrt(rank) for rank, norm in zip(ranks, norms, strict=False)]
    error = slope_standard_error(ranks, norms)
    return RankSlopes(log_log_slope(ranks, norms), log_log_slope(ranks, normalised), error)


def slopes_of(results: Results) -> list[dict[str, float | str | None]]:
    """Return the slopes of each optimizer in the study ``rank``, their standard errors, and the slopes of the paper.

    ``‖∇f‖_*`` of a run is the mean over its epochs of their means. Every finished run (a rank and a seed) is one point;
    an optimizer with one rank has no slope.
    """
    printed = {row.optimizer: row for row in paper.SLOPES}
    norms = norms_by_rank(cell for cell in results.cells if cell.status == "done")
    rows: list[dict[str, float | str | None]] = []
    for optimizer, by_rank in norms.items():
        if len(by_rank) < 2:
            continue
        runs = [(rank, norm) for rank, values in by_rank.items() for norm in values]
        slopes = rank_slopes([rank for rank, _ in runs], [norm for _, norm in runs])
        known = printed.get(optimizer)
        rows.append(
            {"optimizer": optimizer, **asdict(slopes), "paper_raw": known.raw if known else None}
            | {"paper_normalised": known.normalised if known else None}
        )
    return rows


def norms_by_rank(cells: Iterable[CellResult]) -> dict[str, dict[int, list[float]]]:
    """Return the mean of ``‖∇f‖_*`` over the epochs of each run that measured it, by optimizer and rank."""
    norms: dict[str, dict[int, list[float]]] = {}
    for cell in cells:
        width = cell.spec.get("first_width")
        measured = [row.get("gradient_nuclear_norm") for row in cell.metrics if row["event"] == "evaluation"]
        values = [float(value) for value in measured if isinstance(value, (int, float)) and value > 0]
        if values and len(values) == len(measured) and isinstance(width, int) and width > 0:
            optimizer = cell.points.get("optimizer", cell.label)
            norms.setdefault(optimizer, {}).setdefault(min(width, FIRST_COLUMNS), []).append(statistics.fmean(values))
    return norms
