"""The alignment that a schedule guarantees for every matrix of rank at most r, with no δ_0 (theory page: the floor)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from muonlab import _checks
from muonlab.polynomials import Polynomial, Schedule, taylor
from muonlab.polynomials.base import Array, derivative
from muonlab.polynomials.ranges import range_on, step_range
from muonlab.theory.residual import require_schedule, schedule_error

_UNIT_ROUNDOFF = 2.0**-53
_TIGHTNESS = 2e-4
_MOST_CELLS = 400_000


def alignment_floor(schedule: Schedule, r: int, *, schatten: int = 2) -> float:
    r"""Return an alignment ``ρ/s`` that every matrix of rank ≤ r reaches under this schedule.

    With ``X = M/‖M‖_F`` (``schatten=2``) the singular values satisfy ``Σ s_i² = 1``. If
    ``F(s) + μ (1/(r s) - s) ≥ c`` for all s in (0, 1], multiplying by ``s_i`` and summing over at most r of them gives
    ``⟨X, F(X)⟩ ≥ c ‖X‖_*``. The floor is the best such c over μ ≥ 0, divided by ``max |F|``; the inequality is verified
    on all of (0, 1] with interval bounds, so the value is a guarantee, at most 0.1 % below that best c.

    Args:
        schedule: the polynomials of the steps.
        r: largest rank, at least 1.
        schatten: exponent of the prescale's Schatten norm: 2 (``frobenius``), 4 or 8; then ``Σ s_i^schatten = 1``.

    Example:
        >>> from muonlab.polynomials import Schedule, taylor
        >>> round(alignment_floor(Schedule.repeat(taylor(2), 3), 768), 3)
        0.159
    """
    require_schedule(schedule)
    r = _checks.integer("r", r, at_least=1)
    _checks.one_of("schatten", schatten, (2, 4, 8))
    return _floor(schedule, r, schatten)


def descent_floor(schedule: Schedule, r: int, *, schatten: int = 2) -> float:
    """Return the same guarantee for the descent ``ρ`` alone, before the division by ``max |F|``.

    Example:
        >>> from muonlab.polynomials import Schedule, taylor
        >>> round(descent_floor(Schedule.repeat(taylor(2), 3), 768), 3)
        0.159
    """
    floor = alignment_floor(schedule, r, schatten=schatten)
    return floor and floor * schedule_error(schedule, 0.0).s_max  # 0 also where F has no largest value


def has_taylor_steps(schedule: Schedule) -> bool:
    """Return whether every step is a Taylor polynomial, of any degree (Kim & Oh 2026, Definition 2); true for none."""
    return all(p == taylor(p.kappa) for p in schedule.polynomials)


def taylor_floor(r: int) -> float:
    """Return ``2/(1 + √r)``: the alignment of Taylor steps under any scale into the unit ball, at rank at most r.

    They compose to a map that is increasing and concave on [0, 1] (docs/theory/alignment-floor.md).

    Example:
        >>> taylor_floor(9)
        0.5
    """
    return 2 / (1 + math.sqrt(_checks.integer("r", r, at_least=1)))


@lru_cache(maxsize=4096)
def _floor(schedule: Schedule, r: int, power: int) -> float:
    s_max = schedule_error(schedule, 0.0).s_max
    if not 0 < s_max < math.inf:
        return 0.0
    steps = prepared_steps(schedule)
    mu = _best_multiplier(schedule, r, power)
    return max(0.0, _verified_minimum(steps, mu, r, power, s_max)) / s_max


def _best_multiplier(schedule: Schedule, r: int, power: int) -> float:
    """Maximise ``min_s [F(s) + μ (1/(r s) - s^(power-1))]``, concave in μ, on a grid; any μ ≥ 0 is valid.

    F rises within s of about 1/slope, and the best μ of such a rise is about r/(4·slope): both set the grids.
    """
    steep = max(1.0, abs(float(schedule.slope)))
    rise, fall = np.geomspace(1e-5 / steep, 1.0, 20_001), 1 - np.geomspace(1e-12, 0.5, 4_001)
    s = np.concatenate([rise, fall])  # steps that overshoot are steep at 1 as well
    F, slack = schedule(s), 1 / (r * s) - s ** (power - 1)

    def value(log_mu: float) -> float:
        return float(np.min(F + math.exp(log_mu) * slack))

    low, high = math.log(1e-3 / steep), math.log(1e9)
    for _ in range(120):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if value(a) < value(b) else (low, b)
    return math.exp((low + high) / 2)


@dataclass(frozen=True)
class PreparedSteps:
    """The step polynomials, the critical points of each, and a bound on the rounding error of float64 ranges."""

    polynomials: tuple[Polynomial, ...]
    critical: tuple[Array, ...]
    error: float

    def range(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Enclose ``F`` on each cell ``[a_i, b_i]``, up to ``error``."""
        for p, critical in zip(self.polynomials, self.critical, strict=True):
            fa, fb = p.step(a), p.step(b)
            low, high = np.minimum(fa, fb), np.maximum(fa, fb)
            for x in critical:
                inside, fx = (a < x) & (x < b), p.step(float(x))
                low = np.where(inside, np.minimum(low, fx), low)
                high = np.where(inside, np.maximum(high, fx), high)
            a, b = low, high
        return a, b

    def minimum(
        self, objective: Callable[[Array, Array], Array], edges: Array, *, relative: float, absolute: float = 0.0
    ) -> float:
        """Bound the minimum of ``objective(s, F(s))`` from below, up to ``error``, by branch and bound on cells.

        The objective falls with s and rises with F. Cells are halved until the bound is within the tightness asked for.
        """
        a, b = edges[:-1], edges[1:]
        attained, bound = math.inf, math.inf
        while a.size:
            lower = objective(b, self.range(a, b)[0])
            attained = min(attained, float(np.min(objective(b, self.range(b, b)[1]))))
            done = (lower >= attained - max(relative * abs(attained), absolute)) | (a.size > _MOST_CELLS)
            bound = min(bound, float(np.min(lower[done], initial=math.inf)))
            a, b = a[~done], b[~done]
            middle = (a + b) / 2
            a, b = np.concatenate([a, middle]), np.concatenate([middle, b])
        return bound


@lru_cache(maxsize=256)
def prepared_steps(schedule: Schedule) -> PreparedSteps:
    """Prepare a schedule on [0, 1], once for all ranks and prescales: the exact ranges take as long as a floor."""
    critical, error, relative, low, high = [], 0.0, 0.0, Fraction(0), Fraction(1)
    for p in schedule.polynomials:
        critical.append(_critical_points(p))
        reach = max(abs(low), abs(high))
        weight = float(sum(abs(c) * max(Fraction(1), reach**2) ** k for k, c in enumerate(p.exact_u)))
        rounding = 4 * (p.kappa + 3) * _UNIT_ROUNDOFF * weight
        steepest = max(map(abs, range_on(derivative(p.exact_step), low, high)))
        error = float(steepest) * error + rounding * float(reach)
        relative += _relative_rounding(p, rounding, low, high)
        low, high = step_range(p, low, high)
    largest = float(max(abs(low), abs(high)))
    return PreparedSteps(schedule.polynomials, tuple(critical), min(error, relative * largest))


def _relative_rounding(p: Polynomial, rounding: float, low: Fraction, high: Fraction) -> float:
    """Return what a step adds to the relative error, infinite unless it magnifies none: ``|s f'/f| ≤ 1``, ``p > 0``.

    With ``f(s) = s·p(s²)`` that is ``0 ≤ -λp'`` and ``0 ≤ p + λp'``, as for Taylor polynomials, whose rounding errors
    therefore add up, however steep the schedule.
    """
    lam = (min(low**2, high**2) if low > 0 else Fraction(0), max(low**2, high**2))
    scaled = tuple(k * a for k, a in enumerate(p.exact))  # λp'
    least = range_on(p.exact, *lam)[0]
    falls = range_on(scaled, *lam)[1] <= 0
    mild = range_on([a + b for a, b in zip(p.exact, scaled, strict=True)], *lam)[0] >= 0
    return rounding / float(least) if least > 0 and falls and mild else math.inf


def _critical_points(p: Polynomial) -> Array:
    """Return the real zeros of ``(s·p(s²))'``; f is flat there, so their own rounding costs only second order."""
    roots = np.roots([(2 * k + 1) * c for k, c in reversed(tuple(enumerate(p.coefficients)))])
    lam = roots.real[(np.abs(roots.imag) < 1e-3 * np.abs(roots.real)) & (roots.real > 0)]
    return np.concatenate([-np.sqrt(lam), np.sqrt(lam)])


def _verified_minimum(steps: PreparedSteps, mu: float, r: int, power: int, s_max: float) -> float:
    """Bound ``min over (0, 1]`` of ``F(s) + μ (1/(r s) - s^(power-1))`` from below."""

    def penalized(s: Array, F: Array) -> Array:
        return F + mu * (1 / (r * s) - s ** (power - 1))

    tiny = mu / (r * (2 * s_max + mu))  # below it the penalty alone exceeds s_max, and the minimum does not
    bound = steps.minimum(penalized, np.geomspace(tiny, 1.0, 4097), relative=_TIGHTNESS)
    return bound - steps.error - 64 * _UNIT_ROUNDOFF * (1 + mu + mu / (r * tiny))
