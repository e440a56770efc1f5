"""How the steps of a schedule are grouped: one product with X per segment, the rest in Gram space.

Within a segment the steps act on ``R = X Xᵀ`` alone and their product ``Q`` is applied to X at its end. A segment of
one step is the standard iteration. Forming R loses digits of small singular values, so a segment may only be as long as
its sensitivity to R allows; then the next one starts from X again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
import torch

from muonlab.orthogonalize.arithmetic import CPU_COSTS, Arithmetic, arithmetic_of
from muonlab.polynomials import Polynomial, Schedule
from muonlab.polynomials.base import Array, horner
from muonlab.theory.cost import products

Method = Literal["standard", "gram", "auto"]
METHODS: tuple[Method, ...] = ("standard", "gram", "auto")
Accuracy = Literal["full", "half"]
ACCURACIES: tuple[Accuracy, ...] = ("full", "half")
Segment = tuple[Polynomial, ...]

HALF_ACCURACY = 2.0**-8
"""Error in the operator norm that accuracy "half" lets Gram space add: the spacing of bfloat16 at 1."""

_SENSITIVE_SMALL, _SENSITIVE_LARGE = 1.2, 4.0
_NEGATIVE = 0.25


def gram_sensitivity(segment: Segment) -> float:
    """Return ``sup_s √λ|Q'(λ)|`` with ``Q(λ) = F(s)/s``, ``λ = s²``: how an error in R reaches ``Q(R) X``.

    It equals ``|F'(s) - F(s)/s|/(2s)``; for a map that rises with slope K and then stays near 1 it is about K²/2.
    """
    s = np.geomspace(1e-6, 1.0, 4001)
    F, slope = slope_along(segment, s)
    return float(np.max(np.abs(slope - F / s) / (2 * s)))


def slope_along(segment: Segment, s: Array) -> tuple[Array, Array]:
    """Return ``F(s)`` and ``F'(s)`` of composed steps, by the chain rule."""
    F, slope = s.copy(), np.ones_like(s)
    for p in segment:
        lam = F * F
        value = p(lam)
        slope *= value + 2 * lam * horner([k * c for k, c in enumerate(p.coefficients)][1:], lam)  # p + 2λp'
        F = F * value
    return F, slope


def _allowed_sensitivity(schedule: Schedule, m: int, n: int) -> float:
    """Return the sensitivity, in units of the slope, that keeps the error within 4 unit roundoffs times the slope.

    The rounding of R counts about two units where R is small or p has many terms, and averages out in large matrices
    (measured in docs/log.md).
    """
    averages_out = m >= 64 and m * n >= 36_000 and (m >= 192 or n >= 2 * m)
    simple = all(p.kappa <= 2 for p in schedule.polynomials)
    return _SENSITIVE_LARGE if averages_out and simple else _SENSITIVE_SMALL


@lru_cache(maxsize=4096)
def gram_segments(
    schedule: Schedule, unit_roundoff: float, sensitivity: float, error: float = 0.0
) -> tuple[Segment, ...]:
    """Group steps greedily into the longest segments whose error stays within a few units of the standard one.

    A segment ends where its sensitivity to R exceeds both ``sensitivity`` times its slope and ``error/unit_roundoff``,
    or where rounding could push an eigenvalue of R so far below zero that the steps drive it
    away (half precision: after two or three steps).
    """
    groups: list[list[Polynomial]] = []
    for p in schedule.polynomials:
        if groups:
            longer = (*groups[-1], p)
            slope = float(Schedule(longer).slope)
            allowed = max(sensitivity * slope, error / unit_roundoff)
            if gram_sensitivity(longer) <= allowed and unit_roundoff * slope**2 <= _NEGATIVE:
                groups[-1].append(p)
                continue
        groups.append([p])
    return tuple(map(tuple, groups))


def segment_flops(segments: tuple[Segment, ...], m: int, n: int, costs: tuple[float, float] = CPU_COSTS) -> float:
    """Return the operations of a grouping, each product among symmetric matrices counted by its cost.

    ``costs`` is that of the products that stay symmetric and that of ``P R`` and ``Q P``, over that of a whole one.
    """
    symmetric, commuting = costs
    total = 0.0
    for segment in segments:
        powers = sum(products(p.kappa) for p in segment) + len(segment) - 1  # powers of R, and P R P
        pairs = 2 * (len(segment) - 1)  # P R and Q P
        total += 2 * m * m * n * (1 + symmetric) + 2 * m**3 * (symmetric * powers + commuting * pairs)
    return total


def plan_segments(
    schedule: Schedule,
    m: int,
    n: int,
    dtype: torch.dtype,
    method: Method,
    accuracy: Accuracy = "full",
    device: torch.device | str = "cpu",
) -> tuple[Segment, ...]:
    """Choose the segments for m×n (m ≤ n) from schedule, shape, dtype, device and torch's setting of TF32.

    A timing is never used: ranks and resumed runs would diverge.
    """
    return segments_for(schedule, m, n, arithmetic_of(dtype, device, m), method, accuracy)


@lru_cache(maxsize=4096)
def segments_for(
    schedule: Schedule, m: int, n: int, arithmetic: Arithmetic, method: Method, accuracy: Accuracy = "full"
) -> tuple[Segment, ...]:
    """Choose the segments for m×n (m ≤ n) by how products round and what they cost."""
    singles = tuple((p,) for p in schedule.polynomials)
    if method == "standard":
        return singles
    error = HALF_ACCURACY if accuracy == "half" else 0.0
    grouped = gram_segments(schedule, arithmetic.unit_roundoff, _allowed_sensitivity(schedule, m, n), error)
    if method == "gram":
        return grouped
    costs = (arithmetic.symmetric, arithmetic.commuting)
    return grouped if segment_flops(grouped, m, n, costs) < segment_flops(singles, m, n, costs) else singles
