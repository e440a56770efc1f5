"""Learning-rate schedules, what they cost, and the bound for a schedule at one momentum (Corollary A1).

A schedule is a factor h(t/T) on the peak learning rate. Only two numbers of it enter the bound, the sums of the factors
and of their squares; at the best peak rate the deterministic part grows by √R with ``R = T Σh² / (Σh)²``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from muonlab import _checks
from muonlab.polynomials.base import Array
from muonlab.theory.alignment import theorem_beta
from muonlab.theory.bound import Bound, ProblemConstants, checked_beta

LrSchedule = Literal["constant", "linear", "cosine", "warmup_cosine", "wsd"]
WARMUP, DECAY = 0.05, 0.15
"""Parts of the run in which ``warmup_cosine`` and ``wsd`` rise, and in which ``wsd`` falls."""
_EXACT_SUM = 1_000_000


class _Shape(NamedTuple):
    """A schedule on [0, 1]: its factor at x, its integral, that of its square, and its total variation."""

    factor: Callable[[Array], Array]
    mean: float
    mean_square: float
    variation: float


def _cosine(x: Array) -> Array:
    return (1 + np.cos(np.pi * x)) / 2


_SHAPES: Mapping[LrSchedule, _Shape] = MappingProxyType(
    {
        "constant": _Shape(np.ones_like, 1.0, 1.0, 0.0),
        "linear": _Shape(lambda x: 1 - x, 1 / 2, 1 / 3, 1.0),
        "cosine": _Shape(_cosine, 1 / 2, 3 / 8, 1.0),
        "warmup_cosine": _Shape(
            lambda x: np.minimum(x / WARMUP, _cosine(np.maximum(x - WARMUP, 0) / (1 - WARMUP))),
            1 / 2,
            WARMUP / 3 + 3 / 8 * (1 - WARMUP),
            2.0,
        ),
        "wsd": _Shape(
            lambda x: np.minimum(np.minimum(x / WARMUP, 1.0), (1 - x) / DECAY),
            1 - (WARMUP + DECAY) / 2,
            1 - 2 / 3 * (WARMUP + DECAY),
            2.0,
        ),
    }
)
LR_SCHEDULES: tuple[LrSchedule, ...] = tuple(_SHAPES)
"""``constant``; ``linear`` and ``cosine`` decay to zero; ``warmup_cosine`` as in the paper's experiments, with a linear
rise over 5 % of the steps; ``wsd``: a rise over 5 %, then constant, and a linear fall over the last 15 %."""


class ScheduleSums(NamedTuple):
    """``Σ h_t`` and ``Σ h_t²`` over the steps of a run."""

    total: float
    squares: float

    def cost(self, T: int) -> float:
        """Return ``√R``, the factor on the deterministic part of the bound at the best peak rate; 1 if constant."""
        return math.sqrt(T * self.squares) / self.total


def schedule_factors(name: LrSchedule, T: int) -> Array:
    """Return h_t for the steps t = 1…T: the value in the middle of each step.

    Example:
        >>> schedule_factors("linear", 4).tolist()
        [0.875, 0.625, 0.375, 0.125]
    """
    _checks.one_of("lr_schedule", name, LR_SCHEDULES)
    T = _checks.integer("T", T, at_least=1)
    return _SHAPES[name].factor((np.arange(T) + 0.5) / T)


def schedule_sums(name: LrSchedule, T: int) -> ScheduleSums:
    """Return the sums over T steps; above a million steps a lower bound on the first and an upper on the second.

    There the sums are T times the integrals, up to the total variation of the schedule.

    Example:
        >>> round(schedule_sums("cosine", 1000).cost(1000), 3)
        1.225
    """
    _checks.one_of("lr_schedule", name, LR_SCHEDULES)
    T = _checks.integer("T", T, at_least=1)
    if T <= _EXACT_SUM and name != "constant":
        factors = schedule_factors(name, T)
        return ScheduleSums(float(np.sum(factors)), float(np.sum(factors**2)))
    shape = _SHAPES[name]
    return ScheduleSums(shape.mean * T - shape.variation, shape.mean_square * T + shape.variation)


def schedule_bound(
    *,
    L: float,
    D: float,
    sigma: float,
    r: int,
    B: int,
    T: int,
    alignment: float,
    op_norm: float = 1.0,
    lr_schedule: LrSchedule = "constant",
    nesterov: bool = True,
    eta: float | None = None,
    beta: float | None = None,
) -> Bound:
    r"""Bound the average gradient norm, weighted by the learning rates, at one momentum (docs/theory, Corollary A1).

    With ``H = Σ η_t``, ``H_2 = Σ η_t²``, ``k = √((1-β)/(1+β))`` and ``ρ = alignment·s``,

    .. math::
        \sum_t \frac{\eta_t}{H} E\|\nabla_t\|_* \le \frac1\rho \Big\{ \frac DH
        + \frac{H_2}{H} L s \Big[\frac s2 + (\rho+s) d\Big] + \sigma\sqrt{r/B}\, (\rho\omega + s\nu)
        + (\rho+s) \sqrt{2LD}\, \frac eH \Big\}

    where for heavy ball and EMA ``d = β/(1-β)``, ``ω = βk``, ``ν = k``, ``e = Σ η_t β^t``, and with Nesterov
    ``d = β²/(1-β)``, ``ω = β²k``, ``ν = k√(1+2β-2β³)``, ``e = Σ η_t β^{t+1}``. The last sum is bounded by the peak rate
    times ``β/(1-β)``, or ``β²/(1-β)``. At a constant rate without Nesterov this is :func:`alignment_bound` with
    ``start="plain"``, except that its noise term has ``ρβ + s`` in place of ``ρ + s``.

    Args:
        L: smoothness constant from the operator to the nuclear norm.
        D: ``f(W_0) - f*``.
        sigma: bound on one sample's standard deviation, Frobenius norm.
        r: rank bound, ``min(m, n)``.
        B: batch size.
        T: number of steps.
        alignment: ``ρ/s``, at most 1, fixed in advance; zero or less gives no bound.
        op_norm: gain s.
        lr_schedule: one of ``LR_SCHEDULES``.
        nesterov: whether Nesterov's look-ahead is orthogonalized.
        eta: peak learning rate; None takes the best one for this β.
        beta: momentum; None takes that of Theorem 1.

    Example:
        >>> given = {"L": 1.0, "D": 1.0, "sigma": 0.1, "r": 1, "B": 1, "T": 1000, "alignment": 1.0, "beta": 0.5}
        >>> [round(schedule_bound(**given, lr_schedule=name).total, 3) for name in ("constant", "cosine")]
        [0.17, 0.189]
    """
    problem = ProblemConstants(L, D, sigma, r, B, T)
    a = _checks.real("alignment", alignment, low=-1.0, high=1.0)
    s = _checks.positive("op_norm", op_norm)
    used_beta = theorem_beta(problem) if beta is None else checked_beta(beta)
    sums = schedule_sums(lr_schedule, problem.T)
    if a <= 0.0:
        return Bound.none(f"alignment = {a:g}: the direction need not descend", eta=eta or 0.0, beta=used_beta)
    rho = a * s
    best = best_peak(problem, rho, s, used_beta, sums, nesterov)
    used_eta = best if eta is None else _checks.positive("eta", eta)
    terms = schedule_terms(problem, rho=rho, s=s, eta=used_eta, beta=used_beta, sums=sums, nesterov=nesterov)
    reason = f"Corollary A1 with rho = {rho:g}, s = {s:g}, {lr_schedule} rate"
    return Bound.of(terms, reason, eta=used_eta, beta=used_beta)


def schedule_terms(
    problem: ProblemConstants, *, rho: float, s: float, eta: float, beta: float, sums: ScheduleSums, nesterov: bool
) -> dict[str, float]:
    """Return the named terms of Corollary A1 at a peak rate."""
    ahead = beta if nesterov else 1.0  # Nesterov's look-ahead has one more power of β
    kept = math.sqrt((1 - beta) / (1 + beta))
    lag = ahead * beta / (1 - beta)
    current = math.sqrt(1 + 2 * beta - 2 * beta**3) if nesterov else 1.0
    L, D = problem.L, problem.D
    return {
        "descent": D / (eta * sums.total) / rho if D else 0.0,
        "curvature": eta * sums.squares / sums.total * L * s * s / 2 / rho,
        "drift": eta * sums.squares / sums.total * L * s * (rho + s) * lag / rho,
        "noise": problem.noise * (rho * ahead * beta + s * current) * kept / rho,
        "start": (rho + s) * math.sqrt(2 * L * D) * lag / sums.total / rho,
    }


def best_peak(
    problem: ProblemConstants, rho: float, s: float, beta: float, sums: ScheduleSums, nesterov: bool
) -> float:
    """Return the peak rate that balances ``D/H`` against the terms that grow with the rates."""
    lag = (beta if nesterov else 1.0) * beta / (1 - beta)
    return math.sqrt(problem.D / (sums.squares * problem.L * s * (s / 2 + (rho + s) * lag)))
