"""Residual δ, polar error ε and factor χ after q Newton-Schulz steps (Kim & Oh 2026, Lemmas 1-3, Theorem 2)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from muonlab import _checks
from muonlab.polynomials import Polynomial, Schedule, taylor
from muonlab.polynomials.ranges import schedule_range


class State(NamedTuple):
    """A residual δ, λ = 1 - δ and s = √λ, each with full relative precision (λ underflows long before s does)."""

    delta: float
    lam: float
    s: float

    @classmethod
    def of_delta(cls, delta: float) -> State:
        """Return the state of a residual, with λ and s computed from it."""
        return cls(delta, 1 - delta, math.sqrt(1 - delta))


def _start(delta_0: float | None, lambda_0: float | None, sigma_min: float | None) -> State:
    values = {"delta_0": delta_0, "lambda_0": lambda_0, "sigma_min": sigma_min}
    given = [name for name, value in values.items() if value is not None]
    if len(given) != 1:
        raise ValueError(
            f"give exactly one of delta_0, lambda_0, sigma_min, got {' and '.join(given) or 'none'}: "
            f"lambda_0 = 1 - delta_0 = sigma_min**2"
        )
    if delta_0 is not None:
        return State.of_delta(_checks.real("delta_0", delta_0, low=0.0, high=1.0, high_open=True))
    if lambda_0 is not None:
        lam = _checks.real("lambda_0", lambda_0, low=0.0, high=1.0, low_open=True)
        return State(1 - lam, lam, math.sqrt(lam))
    s = _checks.real("sigma_min", sigma_min, low=0.0, high=1.0, low_open=True)
    return State((1 - s) * (1 + s), s * s, s)


def _step(p: Polynomial, at: State) -> State:
    """Apply δ ← φ(δ), λ ← τ(λ), s ← s·p(s²); a small δ keeps its digits in φ, a large one in τ and s."""
    delta = p.phi(at.delta)
    if delta < 0.5:
        return State.of_delta(delta)
    lam = p.tau(at.lam)
    return State(1 - lam, lam, p.step(at.s))


def _after(
    delta_0: float | None, kappa: int, q: int, bound: bool, lambda_0: float | None, sigma_min: float | None
) -> State:
    p = taylor(kappa)
    kappa = p.kappa
    q = _checks.integer("q", q, at_least=0)
    at = _start(delta_0, lambda_0, sigma_min)
    if not _checks.boolean("bound", bound):
        for _ in range(q):
            before, at = at, _step(p, at)
            if at == before:  # no further step changes it
                break
        return at
    if at.delta == 0.0 or q == 0:
        return at
    if q * math.log(kappa + 1) > 710:  # the power is beyond the range of floats
        return State(0.0, 1.0, 1.0)
    log_delta = math.log(at.delta) if at.delta < 0.5 else math.log1p(-at.lam)
    try:
        exponent = float((kappa + 1) ** q) * log_delta
    except OverflowError:
        return State(0.0, 1.0, 1.0)
    if exponent == 0.0:  # λ has underflowed: δ^n = 1 - nλ to all digits
        return State(1.0, 0.0, math.sqrt(float((kappa + 1) ** q)) * at.s)
    lam = -math.expm1(exponent)
    return State(math.exp(exponent), lam, math.sqrt(lam))


def residual_after(
    delta_0: float | None = None,
    kappa: int = 2,
    q: int = 3,
    bound: bool = False,
    *,
    lambda_0: float | None = None,
    sigma_min: float | None = None,
) -> float:
    r"""Return the orthogonality residual ``δ_q`` (Kim & Oh 2026, Lemmas 2 and 3).

    Exactly, ``δ_{j+1} = φ_κ(δ_j)``; with ``bound=True`` the paper's ``δ_0^{(κ+1)^q}``. All on ``range(M)``.

    Args:
        delta_0: residual of the scaled matrix, in [0, 1).
        kappa: degree of the Taylor polynomial.
        q: number of steps.
        bound: the closed bound of Theorem 2 instead of the recursion.
        lambda_0: instead of ``delta_0``, the smallest positive eigenvalue of ``X Xᵀ`` (a δ_0 near 1 has lost it).
        sigma_min: instead of ``delta_0``, the smallest positive singular value of ``X``.

    Example:
        >>> residual_after(0.5, kappa=1, q=1), residual_after(0.5, kappa=1, q=1, bound=True)
        (0.21875, 0.25)
    """
    return _after(delta_0, kappa, q, bound, lambda_0, sigma_min).delta


def polar_error(
    delta_0: float | None = None,
    kappa: int = 2,
    q: int = 3,
    bound: bool = False,
    *,
    lambda_0: float | None = None,
    sigma_min: float | None = None,
) -> float:
    """Return ``ε_q = 1 - √(1 - δ_q)`` (Kim & Oh 2026, Lemma 1, Theorem 2); arguments as in :func:`residual_after`.

    Example:
        >>> polar_error(0.75, kappa=2, q=0)
        0.5
    """
    at = _after(delta_0, kappa, q, bound, lambda_0, sigma_min)
    return at.delta / (1 + at.s)


def chi(
    delta_0: float | None = None,
    kappa: int = 2,
    q: int = 3,
    bound: bool = False,
    *,
    lambda_0: float | None = None,
    sigma_min: float | None = None,
) -> float:
    """Return ``χ_q = 1/(1 - ε_q)`` (Kim & Oh 2026, Theorem 2, Corollary 1); arguments as in :func:`residual_after`.

    Example:
        >>> chi(0.75, kappa=2, q=0)
        2.0
    """
    return 1 / _after(delta_0, kappa, q, bound, lambda_0, sigma_min).s


def require_schedule(schedule: object) -> None:
    """Raise TypeError unless the argument is a Schedule."""
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule must be a Schedule, got {schedule!r}: use Schedule.repeat(polynomial, steps)")


class ScheduleError(NamedTuple):
    """Guarantees of a schedule on an interval: ``|F_q - 1| ≤ epsilon`` and ``|F_q| ≤ s_max``."""

    epsilon: float
    s_max: float


def schedule_error(schedule: Schedule, ell: float, top: float = 1.0) -> ScheduleError:
    """Return ``(ε, s_max)``, guaranteed for every singular value in ``[ell, top]`` (Kim & Oh 2026, Definition 3).

    For any schedule, not only Taylor's: the range of ``F_q`` is enclosed in rational arithmetic and rounded outward.
    An ε of 1 or more means that Theorem 1 does not apply. ε is never derived from δ: where ``F = -1``, δ = 0 and ε = 2.

    Args:
        schedule: the polynomials of the steps.
        ell: smallest singular value of the scaled matrix, in [0, 1].
        top: largest one; a little above 1 where rounding counts.

    Example:
        >>> from muonlab.polynomials import preset
        >>> [round(x, 4) for x in schedule_error(preset("jordan").schedule(5), 0.01)]
        [0.3182, 1.1344]
    """
    require_schedule(schedule)
    low = Fraction(_checks.real("ell", ell, low=0.0, high=1.0))
    high = Fraction(_checks.real("top", top, low=float(low)))
    low, high = schedule_range(schedule, low, high)
    return ScheduleError(_round_up(max(1 - low, high - 1)), _round_up(max(abs(low), abs(high))))


def _round_up(x: Fraction) -> float:
    try:
        nearest = float(x)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= x else math.nextafter(nearest, math.inf)
