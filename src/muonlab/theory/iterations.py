"""How many steps reach a target: the paper's 𝒪-terms, and the smallest T at which an explicit bound reaches it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from muonlab import _checks
from muonlab.theory.alignment import alignment_terms
from muonlab.theory.bound import Bound, ProblemConstants
from muonlab.theory.lr_schedules import LR_SCHEDULES, LrSchedule, schedule_bound
from muonlab.theory.rates import CONSTANTS, Constants, paper_muon_terms, paper_theta, sgdm_bound

RateMethod = Literal["muon", "svd", "sgdm"]
_METHODS: tuple[RateMethod, ...] = ("muon", "svd", "sgdm")
_LARGEST_T = 2**100


@dataclass(frozen=True)
class Iterations:
    """Steps that suffice for ``(1/T) Σ E‖∇f‖_* ≤ target``.

    Args:
        total: smallest T for which the explicit bound, at its best η and β, is at most the target.
        bound: the bound at that T, with its η and β.
        order: the paper's 𝒪-terms of the iteration complexity (no constants), by name.
    """

    total: int
    bound: Bound
    order: Mapping[str, float]

    @property
    def dominant(self) -> str:
        """Name of the largest 𝒪-term."""
        return max(self.order, key=lambda name: self.order[name])


def iterations_for(
    target: float,
    method: RateMethod = "muon",
    *,
    L: float,
    D: float,
    sigma: float,
    r: int,
    B: int,
    chi: float = 1.0,
    constants: Constants = "sharp",
    lr_schedule: LrSchedule | None = None,
    nesterov: bool = False,
) -> Iterations:
    """Return the steps to ε-stationarity (Kim & Oh 2026, Definition 1; complexities of Theorems 1, 3 and 4).

    With the theorem's β(T) the paper's bound is not monotone in T. The bound holds for every η and β, so both are
    chosen best for each T; the minimum falls with T, and bisection finds the smallest one.

    Args:
        target: stationarity asked for, in the nuclear norm.
        method: ``"muon"`` (factor ``chi``), ``"svd"`` (factor 1) or ``"sgdm"``.
        L: smoothness constant.
        D: ``f(W_0) - f*``.
        sigma: bound on one sample's standard deviation.
        r: ``min(m, n)``.
        B: batch size.
        chi: ``1/(1-ε_q)`` for ``"muon"``, or the inverse of an alignment.
        constants: ``"paper"`` or ``"sharp"``.
        lr_schedule: one of ``lr_schedules.LR_SCHEDULES``, for Muon with sharp constants: the average is then weighted
            by the learning rates (Corollary A1). None is the alignment theorem at a constant rate, whose noise term is
            larger than that of ``"constant"``.
        nesterov: Nesterov's look-ahead, with a schedule.

    Example:
        >>> iterations_for(0.1, "svd", L=1.0, D=1.0, sigma=0.0, r=64, B=1).total
        200
        >>> iterations_for(0.1, "sgdm", L=1.0, D=1.0, sigma=0.0, r=64, B=1).total
        12800
    """
    target = _checks.positive("target", target)
    _checks.one_of("method", method, _METHODS)
    _checks.one_of("constants", constants, CONSTANTS)
    chi = _checks.real("chi", chi, low=1.0)
    if method != "muon" and chi != 1.0:
        raise ValueError(f"chi belongs to method 'muon', got chi = {chi:g} with {method!r}: leave chi out")
    check_schedule(lr_schedule, nesterov, constants)
    if lr_schedule is not None and method == "sgdm":
        raise ValueError(f"SGD-M has no bound for schedules here, got lr_schedule = {lr_schedule!r}: leave it out")
    problem = ProblemConstants(L, D, sigma, r, B, 1)

    def at(T: int) -> Bound:
        """Return the least bound over β, at the best η of each."""
        after_T = ProblemConstants(L, D, sigma, r, B, T)
        if method == "sgdm":
            return _minimise(lambda keep: _sgdm_at(after_T, 1 - keep, constants), after_T)
        if lr_schedule is not None:
            return _minimise(lambda keep: _scheduled_at(after_T, 1 - keep, 1 / chi, lr_schedule, nesterov), after_T)
        return _minimise(lambda keep: _muon_at(after_T, 1 - keep, 1 / chi, constants), after_T)

    low, high = 0, 1
    while (bound := at(high)).total > target:
        low, high = high, 2 * high
        if high > _LARGEST_T:
            raise ValueError(f"target = {target:g} needs more than 2**100 steps: choose a larger target")
    while high - low > 1:
        middle = (low + high) // 2
        tried = at(middle)
        if tried.total <= target:
            high, bound = middle, tried
        else:
            low = middle
    return Iterations(high, bound, MappingProxyType(_order(problem, method, chi, target)))


def check_schedule(lr_schedule: LrSchedule | None, nesterov: bool, constants: Constants) -> None:
    """Raise ValueError for an unknown schedule, a schedule with the paper's constants, or Nesterov without schedule."""
    _checks.one_of("lr_schedule", lr_schedule, (None, *LR_SCHEDULES))
    if lr_schedule is None and _checks.boolean("nesterov", nesterov):
        raise ValueError("nesterov needs a schedule, got lr_schedule = None: pass lr_schedule='constant'")
    if lr_schedule is not None and constants != "sharp":
        raise ValueError(
            f"the paper has no bound for schedules, got lr_schedule = {lr_schedule!r} with constants = {constants!r}: "
            f"pass constants='sharp'"
        )


def _order(problem: ProblemConstants, method: RateMethod, chi: float, target: float) -> dict[str, float]:
    """Return the terms inside the maximum of the paper's iteration complexity."""
    L, D, variance, r = problem.L, problem.D, problem.sigma**2 / problem.B, problem.r
    if method == "sgdm":
        return {"deterministic": r * L * D / target**2, "stochastic": r**2 * variance * L * D / target**4}
    return {
        "deterministic": chi**2 * L * D / target**2,
        "start": chi**2 * r**2 * variance / target**2,
        "stochastic": chi**4 * r * variance * L * D / target**4,
    }


def _muon_at(problem: ProblemConstants, beta: float, rho: float, constants: Constants) -> Bound:
    """Bound Muon at this β and the η that balances the terms falling and rising in η."""

    def at(eta: float) -> dict[str, float]:
        if constants == "paper":
            return paper_muon_terms(problem, rho=rho, eta=eta, beta=beta)
        return alignment_terms(problem, rho=rho, s=1.0, eta=eta, beta=beta, start="plain")

    trial = math.sqrt(max(problem.D, 1e-300) / (problem.T * problem.L))
    terms = at(trial)
    best = trial * math.sqrt(max(terms["descent"], 1e-300) / (terms["curvature"] + terms["drift"]))
    return Bound.of(at(best), f"{constants} constants at the best eta for this beta", eta=best, beta=beta)


def _scheduled_at(problem: ProblemConstants, beta: float, rho: float, lr_schedule: LrSchedule, nesterov: bool) -> Bound:
    """Bound Muon with a schedule at this β and its best peak rate."""
    return schedule_bound(
        L=problem.L, D=problem.D, sigma=problem.sigma, r=problem.r, B=problem.B, T=problem.T,
        alignment=rho, lr_schedule=lr_schedule, nesterov=nesterov, beta=beta,
    )  # fmt: skip


def _sgdm_at(problem: ProblemConstants, beta: float, constants: Constants) -> Bound:
    """Bound SGD-M at this β and its best η."""

    def at(eta: float) -> Bound:
        return sgdm_bound(
            L=problem.L, D=problem.D, sigma=problem.sigma, r=problem.r, B=problem.B, T=problem.T,
            eta=eta, beta=beta, constants=constants,
        )  # fmt: skip

    keep = 1 - beta
    if constants == "sharp":  # falls with η: take the largest one allowed, the root of (b y)² + y = 1, y = Lη/(1-β)
        b = beta / keep
        return at(keep / problem.L * 2 / (1 + math.sqrt(1 + 4 * b * b)))
    unit = paper_theta(problem, eta=1.0, beta=beta)  # θ = unit·η²
    largest = min(keep / problem.L, 0.5 / math.sqrt(unit))
    return min(
        (at(largest * f) for f in _golden(lambda f: at(largest * f).total, 1e-3, 1 - 1e-9, 20)),
        key=lambda bound: bound.total,
    )


def _minimise(bound_at: Callable[[float], Bound], problem: ProblemConstants) -> Bound:
    """Scan ``1 - β`` over powers of two down to rounding, then refine the best bracket."""
    if problem.sigma == 0.0:
        return bound_at(1.0)
    grid = [2.0 ** (k - 52) for k in range(53)]
    best = min(range(53), key=lambda k: bound_at(grid[k]).total)
    left, right = grid[max(best - 1, 0)], grid[min(best + 1, 52)]
    tries = _golden(lambda z: bound_at(math.exp(z)).total, math.log(left), math.log(right))
    return min((bound_at(x) for x in (grid[best], *(min(1.0, math.exp(z)) for z in tries))), key=lambda b: b.total)


def _golden(f: Callable[[float], float], low: float, high: float, rounds: int = 36) -> tuple[float, float, float]:
    """Narrow a bracket of a minimum by golden section; return its ends and middle."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    fa, fb = f(a), f(b)
    for _ in range(rounds):
        if fa <= fb:
            high, b, fb = b, a, fa
            a = high - ratio * (high - low)
            fa = f(a)
        else:
            low, a, fa = a, b, fb
            b = low + ratio * (high - low)
            fb = f(b)
    return low, (low + high) / 2, high
