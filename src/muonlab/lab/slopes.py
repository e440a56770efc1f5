"""Exponents of growth with the rank: log-log slopes, raw and after division by √r (Kim & Oh 2026, Table 8)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RankSlopes:
    """Exponents ω of ``‖∇f‖_* ∝ r^ω`` and of ``‖∇f‖_*/√r``; the second is the first less one half."""

    raw: float
    normalised: float


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
            f"leave out what is zero or missing"
        )
    return statistics.linear_regression([math.log(value) for value in x], [math.log(value) for value in y]).slope


def rank_slopes(ranks: Sequence[int], norms: Sequence[float]) -> RankSlopes:
    """Return both slopes of gradient norms against ranks, each by its own fit (Kim & Oh 2026, Table 8).

    Args:
        ranks: ``min(m, n)`` of the watched layer, one for each width.
        norms: its epoch mean of ``‖∇f‖_*`` at each.

    Example:
        >>> rank_slopes([16, 64], [1.0, 2.0])
        RankSlopes(raw=0.5, normalised=0.0)
    """
    normalised = [norm / math.sqrt(rank) for rank, norm in zip(ranks, norms, strict=False)]
    return RankSlopes(log_log_slope(ranks, norms), log_log_slope(ranks, normalised))
