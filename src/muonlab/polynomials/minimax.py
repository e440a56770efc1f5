"""Polar Express: the best odd polynomial of each step on the interval that the previous steps map to.

Amsel, Persson, Musco and Gower (2025) show that composing the minimax polynomial of each step is optimal among all
compositions. Here it is solved by Remez exchange, for any lower end ``ell``, any degree and any number of steps.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.polynomial import Chebyshev

from muonlab import _checks
from muonlab.polynomials.base import Polynomial, Schedule
from muonlab.polynomials.taylor_polynomial import taylor

CUSHION = 0.02407327424182761
"""The published choice."""

_EXCHANGES = 100


def minimax_step(low: float, high: float, kappa: int) -> Polynomial:
    """Return the ``p`` of degree κ that minimises ``max |1 - s·p(s²)|`` over ``[low, high]``.

    When the ends meet to rounding, the limit is the Taylor polynomial about that point.

    Example:
        >>> p = minimax_step(0.1, 1.0, kappa=2)
        >>> round(p.tau(0.1), 2), round(p.tau(1.0), 2)
        (1.86, 2.11)
    """
    low, high = _checks.positive("low", low), _checks.positive("high", high)
    kappa = _checks.integer("kappa", kappa, at_least=1, at_most=_checks.LARGEST_DEGREE)
    if low > high:
        raise ValueError(f"minimax_step needs low <= high, got [{low}, {high}]: swap the ends")
    return _remez(low, high, kappa)[0]


def _remez(low: float, high: float, kappa: int) -> tuple[Polynomial, float]:
    """Return the minimax polynomial and its error: κ + 2 points where the error has one size and alternate signs."""
    if (1 - low / high) ** (kappa + 1) < 1e-16 * min(4**kappa, 1e8):  # lost in rounding: take the limit
        return taylor(kappa).shrunk(high), 0.0

    domain = (low * low, high * high)  # in λ = s²
    lam = Chebyshev((sum(domain) / 2, (domain[1] - domain[0]) / 2), domain)
    nodes = (low + high) / 2 - (high - low) / 2 * np.cos(np.pi * np.arange(kappa + 2) / (kappa + 1))
    signs = (-1.0) ** np.arange(kappa + 2)
    for _ in range(_EXCHANGES):
        t = (2 * nodes**2 - sum(domain)) / (domain[1] - domain[0])
        system = np.column_stack([nodes[:, None] * np.polynomial.chebyshev.chebvander(t, kappa), signs])
        try:
            solution = np.linalg.solve(system, np.ones(kappa + 2))
        except np.linalg.LinAlgError:
            raise _unsolved(low, high, kappa) from None
        p = Chebyshev(solution[:-1], domain)
        slope = p + 2 * lam * p.deriv()  # d/ds of s·p(s²)
        inner = np.sort(np.sqrt(np.clip(slope.roots().real, *domain)))
        exchanged = np.concatenate([[low], inner, [high]])
        if np.allclose(exchanged, nodes, rtol=1e-13, atol=0):
            break
        nodes = exchanged
    level = abs(float(solution[-1]))
    result = Polynomial(p.convert(kind=np.polynomial.Polynomial).coef.tolist())
    worst = max(abs(1 - result.step(Fraction(float(x)))) for x in exchanged)
    if not worst <= 1.01 * level + 1e-9 or level >= 1:
        raise _unsolved(low, high, kappa)
    return result, level


def _unsolved(low: float, high: float, kappa: int) -> ValueError:
    return ValueError(
        f"the minimax problem must be solvable in float64, got kappa = {kappa} on [{low:.3g}, {high:.3g}], which is "
        f"not: lower kappa, or raise ell or cushion"
    )


def polar_express(ell: float, kappa: int = 2, steps: int = 5, *, cushion: float = CUSHION) -> Schedule:
    """Build the schedule for singular values in ``[ell, 1]``.

    Each step solves the minimax problem on ``[max(ℓ, cushion·u), u]``, is rescaled so that its least value (at ``ℓ``)
    and its largest lie symmetric about 1; the interval between them is the next step's. The cushion keeps the early
    steps from growing too steep; ``ell=1e-3`` and the default give the published table.

    Args:
        ell: smallest singular value to optimize for, in (0, 1].
        kappa: degree in λ of every step; beyond about 8 a small ``ell`` leaves float64 too few digits.
        steps: number of steps.
        cushion: lower end of each step's problem, relative to its upper end, in [0, 1).

    Example:
        >>> [round(c, 5) for c in polar_express(1e-3, steps=1).polynomials[0].coefficients]
        [8.28721, -23.59589, 17.30039]
    """
    ell = _checks.real("ell", ell, low=0.0, high=1.0, low_open=True)
    kappa = _checks.integer("kappa", kappa, at_least=1, at_most=_checks.LARGEST_DEGREE)
    steps = _checks.integer("steps", steps, at_least=0, at_most=_checks.LARGEST_STEPS)
    cushion = _checks.real("cushion", cushion, low=0.0, high=1.0, high_open=True)
    name = f"polar_express(ell={ell:g}, kappa={kappa}, steps={steps})"
    polynomials: list[Polynomial] = []
    low, high = ell, 1.0
    for j in range(steps):
        p, error = _remez(max(low, cushion * high), high, kappa)
        centre = 2 / (float(p.step(Fraction(low))) + 1 + error)
        p = Polynomial(tuple(c * centre for c in p.coefficients), name=f"{name}[{j}]")
        polynomials.append(p)
        low = min(float(p.step(Fraction(low))), 1.0)
        high = 2 - low
    return Schedule(tuple(polynomials), name=name)
