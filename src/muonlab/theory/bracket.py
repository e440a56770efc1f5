"""Upper bounds of nuclear norms without singular values: brackets C1 and C2 (docs/theory/svd-free-brackets.md)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from muonlab import _checks
from muonlab.polynomials import Schedule
from muonlab.theory.floor import Steps
from muonlab.theory.residual import schedule_error

_TIGHTNESS = 1e-3
_MOST_CELLS = 400_000


@lru_cache(maxsize=256)
def bracket_gap(schedule: Schedule) -> float:
    """Return ``g = max over [0, 1] of s (1 - F(s))``, guaranteed and at most 0.1 % (or 1e-9) above it.

    For ``X`` in the unit ball of rank at most r, ``‖X‖_* ≤ ⟨X, F(X)⟩ + r g``: what a schedule leaves of a singular
    value is weighed by the value itself, so that small ones hardly count.

    Example:
        >>> from muonlab.polynomials import Schedule, preset, taylor
        >>> F = preset("polar_express").schedule(5) + Schedule.repeat(taylor(2), 2)
        >>> f"{bracket_gap(F):.1e}"
        '7.5e-05'
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule must be a Schedule, got {schedule!r}: use Schedule.repeat(polynomial, steps)")
    if math.isinf(schedule_error(schedule, 0.0).s_max):  # it diverges: there is no number to bound
        return math.inf
    steps = Steps.of(schedule)
    edges = np.concatenate([np.zeros(1), np.geomspace(1e-9, 1.0, 4096)])
    a, b = edges[:-1], edges[1:]
    attained, bound = 0.0, 0.0
    while a.size:
        upper = np.maximum(b * (1 - steps.range(a, b)[0]), 0.0)
        attained = max(attained, float(np.max(b * (1 - steps.range(b, b)[1]))))
        done = (upper <= attained + max(_TIGHTNESS * attained, 1e-9)) | (a.size > _MOST_CELLS)
        bound = max(bound, float(np.max(upper[done], initial=0.0)))
        a, b = a[~done], b[~done]
        middle = (a + b) / 2
        a, b = np.concatenate([a, middle]), np.concatenate([middle, b])
    return bound + steps.error + 1e-15


def moment_bound(m1: float, m2: float, m3: float, r: int) -> float:
    r"""Bound ``‖X‖_*`` from ``m_k = tr((X Xᵀ)^k)``: the two-node Gauss rule for the square root.

    With ``e_k = m_k/r`` it is exact where the eigenvalues take two values, and never above ``√(r m_1)``. Rounding of
    the moments can hide singular values below 1e-8 of the largest, and so take up to ``1e-7·√(r m_1)`` off the bound.

    Args:
        m1: trace of ``A = X Xᵀ``.
        m2: trace of ``A²``.
        m3: trace of ``A³``.
        r: number of eigenvalues counted, at least the rank.

    Example:
        >>> round(moment_bound(1.25, 1.0625, 1.015625, r=2), 6)  # singular values 1 and 1/2
        1.5
    """
    r = _checks.integer("r", r, at_least=1)
    e1, e2, e3 = (_checks.non_negative(f"m{k}", m) / r for k, m in ((1, m1), (2, m2), (3, m3)))
    flat = r * math.sqrt(e1)
    v = e2 - e1 * e1
    if v <= 1e-12 * e1 * e1:  # equal eigenvalues to rounding; Cauchy-Schwarz then loses nothing
        return flat
    c = e3 - 3 * e1 * e2 + 2 * e1**3
    g = c / (2 * v)
    R = math.hypot(g, math.sqrt(v))
    # y₋ = g - R cancels for g > 0; the product of both is -v
    high, low = (g + R, -v / (g + R)) if g > 0 else (-v / (g - R), g - R)
    w = -low / (2 * R)
    nodes = w * math.sqrt(e1 + high) + (1 - w) * math.sqrt(max(0.0, e1 + low))
    return min(flat, r * nodes)
