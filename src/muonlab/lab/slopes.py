"""Exponents of growth with the rank: log-log slopes, raw and after division by √r (Kim & Oh 2026, Table 8)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from muonlab.lab import paper
from muonlab.lab.results import CellResult, Results

IN = 216
"""Columns of CifarNet's first convolution in its first group as a matrix: 24 channels of 3×3."""


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


def slopes_of(results: Results) -> list[dict[str, float | str | None]]:
    """Return the slopes of each optimizer in the study ``rank``, the paper's beside them.

    ``‖∇f‖_*`` of a cell is the mean over its epochs of their means, and of a rank the mean over its seeds.
    """
    printed = {slopes.optimizer: slopes for slopes in paper.SLOPES}
    norms = norms_by_rank(results.cells)
    rows: list[dict[str, float | str | None]] = []
    for optimizer, by_rank in norms.items():
        found = rank_slopes(list(by_rank), [statistics.fmean(values) for values in by_rank.values()])
        known = printed.get(optimizer)
        rows.append(
            {"optimizer": optimizer, **asdict(found), "paper_raw": known.raw if known else None}
            | {"paper_normalised": known.normalised if known else None}
        )
    return rows


def norms_by_rank(cells: Iterable[CellResult]) -> dict[str, dict[int, list[float]]]:
    """Return the mean of ``‖∇f‖_*`` over the epochs of each run that has it, by optimizer and rank."""
    norms: dict[str, dict[int, list[float]]] = {}
    for cell in cells:
        width = cell.spec.get("first_width")
        found = [row.get("gradient_nuclear_norm") for row in cell.metrics if row["event"] == "evaluation"]
        values = [float(value) for value in found if isinstance(value, (int, float)) and value > 0]
        if values and len(values) == len(found) and isinstance(width, int) and width > 0:
            optimizer = cell.points.get("optimizer", cell.label)
            norms.setdefault(optimizer, {}).setdefault(min(width, IN), []).append(statistics.fmean(values))
    return norms
