"""Bounds for Muon as it is run: schedules, changing momentum and steps, Nesterov, weight decay, heavy tails.

:func:`trajectory_bound` bounds the expectation from constants that are fixed in advance (Theorems A, B and C of
docs/theory); :func:`run_bound` certifies one run from what was measured in it. In both, ``O_t`` is any direction with
``⟨Z_t, O_t⟩ ≥ ρ_t ‖Z_t‖_*`` and ``‖O_t‖_op ≤ s_t``, and ``W_t = (1 - η_t λ) W_{t-1} - η_t O_t``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from muonlab import _checks
from muonlab.polynomials.base import Array
from muonlab.theory.bound import BoundStatus, ProblemConstants
from muonlab.theory.momentum import MOMENTUM_FORMS, MomentumForm, momentum_trace

PerStep = float | Sequence[float] | Array
"""One number for all steps, or one for each."""


class FrankWolfeGap(NamedTuple):
    """A bound on the average of ``ρ_t ‖∇_t‖_* + λ ⟨∇_t, W_{t-1}⟩``, weighted by η_t (docs/theory/theorem-b.md).

    Divided by λ, that is the Frank-Wolfe gap of minimizing f over ``‖W‖_op ≤ ρ_t/λ``, which is zero inside of that ball
    exactly at the stationary points of that problem.

    Attributes:
        bound: the bound.
        nonnegative: whether the averaged quantity cannot be negative: the weights stay inside of the ball,
            ``λ ‖W_{t-1}‖_op ≤ ρ_t``. Outside of it a small bound does not mean a small gradient.
    """

    bound: float
    nonnegative: bool


@dataclass(frozen=True)
class TrajectoryBound:
    """A bound on a weighted average of ``E‖∇f(W_{t-1})‖_*``, hence on its least value at steps of positive weight.

    Attributes:
        total: the bound; infinite when the theorem gives none.
        terms: name → contribution: ``descent``, ``curvature``, ``drift`` and ``noise``; they add up to ``total``.
        weights: the weights of the average, ``η_t (ρ_t - λ R_{t-1})``, one for each step; their sum is not 1.
        status: ``"applies"`` or ``"not_applicable"``.
        reason: why the bound applies or does not.
        gap: with weight decay, the bound on the Frank-Wolfe gap, which needs no positive weights; else None.
    """

    total: float
    terms: Mapping[str, float]
    weights: tuple[float, ...]
    status: BoundStatus
    reason: str
    gap: FrankWolfeGap | None = None


def trajectory_bound(
    *,
    L: float,
    D: float,
    sigma: float,
    r: int,
    B: int,
    etas: Sequence[float] | Array,
    betas: PerStep,
    rho: PerStep,
    s: PerStep = 1.0,
    momentum_form: MomentumForm = "ema",
    nesterov: bool = True,
    weight_decay: float = 0.0,
    weight_norm: float | None = None,
    tail: float = 2.0,
) -> TrajectoryBound:
    r"""Bound the average gradient norm for any sequence of learning rates and momenta (docs/theory, Theorems A to C).

    .. math::
        \sum_t \eta_t (\rho_t - \lambda R_{t-1}) E\|\nabla_t\|_* \le D + \frac L2 \sum_t \eta_t^2 s_t'^2
        + \sum_t \eta_t \big[(\rho_t + s_t) A_t + \sigma\sqrt{r/B}\, (\rho_t\omega_t + s_t\nu_t)\big]

    with ``s'_t = s_t + λR_{t-1}``; drift ``A_t`` and kept noise ``ω_t``, ``ν_t`` are those of
    ``muonlab.theory.momentum.momentum_trace``. All sequences must be fixed in advance: for ``rho`` and ``s`` take
    :func:`descent_floor` and the largest value of the schedule. For values that were observed in a run, use
    :func:`run_bound`.

    Args:
        L: smoothness constant from the operator to the nuclear norm.
        D: ``f(W_0) - f*``.
        sigma: bound on one sample's standard deviation, Frobenius norm; with ``tail < 2`` on ``(E‖ξ‖_F^p)^{1/p}`` of
            the batch.
        r: rank bound, ``min(m, n)``.
        B: batch size; 1 with ``tail < 2``.
        etas: learning rates η_t of steps 1…T, zero or more.
        betas: momentum β_t, one number or one for each step.
        rho: descent ρ_t ≥ 0 that every direction reaches.
        s: gain s_t that no direction exceeds.
        momentum_form: ``"ema"`` or ``"heavy_ball"``.
        nesterov: whether Nesterov's look-ahead is orthogonalized.
        weight_decay: λ, decoupled; ``η_t λ`` may not exceed 1.
        weight_norm: ``‖W_0‖_op``, or a bound on it; required with weight decay, and not used without.
        tail: p in (1, 2], the moment of the noise that is finite.

    Example:
        >>> bound = trajectory_bound(L=1.0, D=1.0, sigma=0.1, r=4, B=4, etas=[0.1] * 100, betas=0.9, rho=0.9)
        >>> round(bound.total, 3), max(bound.terms, key=bound.terms.get)
        (1.65, 'drift')
    """
    rates = _per_step("etas", etas, None, low=0.0)
    T = len(rates)
    problem = ProblemConstants(L, D, sigma, r, B, T)
    momenta = _per_step("betas", betas, T, low=0.0, high=1.0)
    rhos, gains = _per_step("rho", rho, T, low=0.0), _per_step("s", s, T, low=0.0)
    _require_hoelder(rhos, gains)
    decay = _checks.non_negative("weight_decay", weight_decay)
    radii = _radii(rates, gains, decay, weight_norm)
    _checks.one_of("momentum_form", momentum_form, MOMENTUM_FORMS)
    unit = noise_unit(problem, tail)
    if decay * rates.max() > 1:
        reason = f"eta * weight_decay = {decay * rates.max():g} exceeds 1 at some step: the weights change their sign"
        return TrajectoryBound(math.inf, {}, (), "not_applicable", reason)
    pull = decay * radii
    trace = momentum_trace(rates * (gains + pull), momenta, momentum_form=momentum_form, nesterov=nesterov, tail=tail)
    noise = rhos * trace.past_noise + gains * trace.noise
    sums = {
        "descent": problem.D,
        "curvature": L / 2 * float(np.sum((rates * (gains + pull)) ** 2)),
        "drift": L * float(np.sum(rates * (rhos + gains) * trace.drift)),
        "noise": unit * float(np.sum(rates * noise)),
    }
    gap = FrankWolfeGap(_over(sums, rates), bool(np.all(pull <= rhos))) if decay else None
    weights = rates * (rhos - pull)
    reason = _no_average(weights, rhos, pull)
    if reason:
        return TrajectoryBound(math.inf, {}, tuple(weights.tolist()), "not_applicable", reason, gap)
    terms = {name: value / float(np.sum(weights)) for name, value in sums.items()}
    theorem = ("C" if tail < 2 else "A") + (" and B" if decay else "")
    reason = f"Theorem {theorem} over {T} steps"
    return TrajectoryBound(math.fsum(terms.values()), terms, tuple(weights.tolist()), "applies", reason, gap)


def noise_unit(problem: ProblemConstants, tail: float) -> float:
    """Return ``σ√(r/B)``, or ``2^{(2-p)/p} σ_p √r`` for a p-th moment (docs/theory/theorem-c.md)."""
    tail = _checks.real("tail", tail, low=1.0, high=2.0, low_open=True)
    if tail < 2 and problem.B != 1:
        raise ValueError(
            f"sigma must be that of the batch if tail < 2, got B = {problem.B} with tail = {tail:g}: pass B=1, and "
            f"2^((2-p)/p) B^((1-p)/p) times the moment of one sample"
        )
    return float(problem.noise * 2 ** ((2 - tail) / tail))


def _radii(rates: Array, gains: Array, decay: float, weight_norm: float | None) -> Array:
    """Return ``R_{t-1}`` for t = 1…T: ``R_t = (1 - η_t λ) R_{t-1} + η_t s_t`` bounds ``‖W_t‖_op``; 0 without decay."""
    radii = np.zeros_like(rates)
    if not decay:
        return radii
    if weight_norm is None:
        raise ValueError(
            f"weight decay needs the norm of the first weights, got weight_decay = {decay:g} without weight_norm: pass "
            f"the operator norm of W_0, 0.0 only if training starts at zero"
        )
    radius = _checks.non_negative("weight_norm", weight_norm)
    for t, (eta, gain) in enumerate(zip(rates.tolist(), gains.tolist(), strict=True)):
        radii[t] = radius
        radius = (1 - eta * decay) * radius + eta * gain
    return radii


def _numbers(name: str, value: object) -> Array:
    """Return numbers as an array of float64."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # tensors with gradients raise RuntimeError
        raise TypeError(
            f"{name} must be real numbers, got {type(value).__name__} ({error}): pass a float or a sequence of floats"
        ) from None


def _per_step(name: str, value: PerStep, T: int | None, *, low: float, high: float = math.inf) -> Array:
    """Return one finite number for each step, in [low, high)."""
    array = _numbers(name, value)
    if T is None and (array.ndim != 1 or not array.size):
        raise ValueError(f"{name} must have one number for each step, got shape {array.shape}: pass a sequence")
    if T is not None and array.ndim and array.shape != (T,):
        raise ValueError(
            f"{name} must be one number or one for each of {T} steps, got shape {array.shape}: pass either"
        )
    array = array if T is None else np.broadcast_to(array, (T,))
    wrong = ~np.isfinite(array) | (array < low) | (array >= high)
    if np.any(wrong):
        t = int(np.argmax(wrong))
        raise ValueError(
            f"{name} must be finite and in [{low:g}, {high:g}) at every step, got {array[t]!r} at step {t + 1}: "
            f"choose values inside that interval"
        )
    return array


def _require_hoelder(rhos: Array, gains: Array) -> None:
    if np.any(np.abs(rhos) > gains * (1 + 1e-4)):
        raise ValueError("|rho| is at most the gain by Hölder's inequality, got a larger one: check what was measured")


def _no_average(weights: Array, rhos: Array, pull: Array) -> str:
    """Return why the weights make no average of gradient norms; empty if they do."""
    negative = int(np.sum(weights < 0))
    if negative and np.all(rhos >= 0):
        largest = float(np.max(pull))
        return (
            f"weight decay pulls as much as the steps descend at {negative} of {len(weights)} steps (lambda times the "
            f"norm of the weights is up to {largest:.3g}): only the Frank-Wolfe gap is bounded"
        )
    if negative:
        return f"rho is negative at {int(np.sum(rhos < 0))} of {len(weights)} steps: such steps need not descend"
    return "" if np.sum(weights) > 0 else "rho or eta is zero at every step: nothing descends"


def _over(sums: Mapping[str, float], weights: Array) -> float:
    total = float(np.sum(weights))
    return math.fsum(sums.values()) / total if total > 0 else math.inf


# ------------------------------------------------------------------------------------------------- one run, measured


class RunBound(NamedTuple):
    """The certificate of one run: a bound on a weighted average of ``‖∇f(W_{t-1})‖_*``, and hence on its minimum.

    The weights are ``η_t ρ_t``, with weight decay ``η_t (ρ_t - λ ‖W_{t-1}‖_op)``; the minimum is that over the steps of
    positive weight.

    Attributes:
        total: the bound; infinite when the theorem gives none.
        terms: name → contribution; they add up to ``total``.
        confidence: probability with which the bound holds, given the constants; 1 without noise (``sigma=0``).
        status: ``"applies"`` or ``"not_applicable"``.
        reason: why.
        gap: with weight decay, the bound on the Frank-Wolfe gap; else None.
    """

    total: float
    terms: dict[str, float]
    confidence: float
    status: str
    reason: str
    gap: FrankWolfeGap | None = None


def run_bound(
    rho: Sequence[float],
    gain: Sequence[float],
    *,
    L: float,
    D: float,
    sigma: float,
    r: int,
    B: int,
    eta: PerStep,
    beta: PerStep,
    failure: float = 0.05,
    momentum_form: MomentumForm = "ema",
    nesterov: bool = True,
    pull: PerStep | None = None,
    tail: float = 2.0,
) -> RunBound:
    r"""Certify one run from the ρ_t and s_t of every step (docs/theory/theorem-a.md, the version for one run).

    .. math::
        \sum_t \eta_t (\rho_t \|\nabla_t\|_* + \lambda \langle \nabla_t, W_{t-1}\rangle) \le D
        + \frac L2 \sum_t \eta_t^2 s_t'^2 + \sum_t \eta_t (|\rho_t| + s_t) (A_t + B_t)

    Without noise it holds on every run. With noise, Hölder's and Markov's inequalities bound the last sum with
    probability ``1 - failure``. A step of negative ρ_t climbs; the sum then bounds no minimum, and the answer is "not
    applicable", as it is where the bound would be negative. A step with learning rate zero counts: the momentum still
    averages there.

    Args:
        rho: descent ρ_t of what was orthogonalized, for steps 1…T, none left out.
        gain: gain s_t of steps 1…T.
        L: smoothness constant.
        D: ``f(W_0) - f*``, or ``f(W_0) - f(W_T)`` (of either sign) where that is known.
        sigma: bound on one sample's standard deviation, for a network ``(Σ_l c_l² σ_l²)^{1/2}``
            (docs/theory/assumption-2.md); see :func:`trajectory_bound` for ``tail < 2``.
        r: rank bound.
        B: batch size.
        eta: learning rate, one for all steps or one for each.
        beta: momentum, one for all steps or one for each.
        failure: probability with which the noise part may fail.
        momentum_form: ``"ema"`` or ``"heavy_ball"``.
        nesterov: whether Nesterov's look-ahead was orthogonalized.
        pull: with weight decay, ``λ ‖W_{t-1}‖_op`` or a bound on it, for each step.
        tail: p in (1, 2], the moment of the noise that is finite.

    Example:
        >>> observed = {"rho": [0.9] * 100, "gain": [1.0] * 100}
        >>> bound = run_bound(**observed, L=1.0, D=1.0, sigma=0.0, r=4, B=1, eta=0.1, beta=0.9)
        >>> round(bound.total, 3), bound.status, bound.confidence
        (1.597, 'applies', 1.0)
    """
    rhos, gains = _numbers("rho", rho), _numbers("gain", gain)
    if rhos.ndim != 1 or rhos.shape != gains.shape or not rhos.size:
        raise ValueError(
            f"run_bound needs rho and gain of every step, got shapes {rhos.shape} and {gains.shape}: "
            f"pass two sequences of length T"
        )
    T = len(rhos)
    if not np.all(np.isfinite(rhos)):
        raise ValueError("rho must be finite at every step, got NaN or infinity: leave such a run uncertified")
    if not np.all(np.isfinite(gains) & (gains >= 0)):
        raise ValueError("gain must be finite and at least 0 at every step, got another value: it is a norm")
    _require_hoelder(rhos, gains)
    D = _checks.real("D", D)
    problem = ProblemConstants(L, max(D, 0.0), sigma, r, B, T)
    failure = _checks.real("failure", failure, low=0.0, high=1.0, low_open=True)
    rates, momenta = _per_step("eta", eta, T, low=0.0), _per_step("beta", beta, T, low=0.0, high=1.0)
    pulls = np.zeros(T) if pull is None else _per_step("pull", pull, T, low=0.0)
    _checks.one_of("momentum_form", momentum_form, MOMENTUM_FORMS)
    unit = noise_unit(problem, tail)
    trace = momentum_trace(rates * (gains + pulls), momenta, momentum_form=momentum_form, nesterov=nesterov, tail=tail)
    load = rates * (np.abs(rhos) + gains)
    sums = {
        "descent": D,
        "curvature": L / 2 * float(np.sum((rates * (gains + pulls)) ** 2)),
        "drift": L * float(np.sum(load * trace.drift)),
    }
    if sigma:
        conjugate, largest = tail / (tail - 1), float(np.max(load)) or 1.0
        size = largest * float(np.sum((load / largest) ** conjugate)) ** (1 / conjugate)  # high powers underflow
        sums["noise"] = unit * size * (float(np.sum(trace.noise**tail)) / failure) ** (1 / tail)
    confidence = 1.0 - (failure if sigma else 0.0)
    gap = None
    if pull is not None and np.all(rhos >= 0):
        gap = FrankWolfeGap(_over(sums, rates), bool(np.all(pulls <= rhos)))
    weights = rates * (rhos - pulls)
    reason = _no_average(weights, rhos, pulls)
    right = math.fsum(sums.values())
    if right < 0 and (not reason or (gap is not None and gap.nonnegative)):
        reason = (
            f"the bound is negative (right side {right:.4g}), what it bounds is not: D is not that of this run, L or "
            f"sigma is too small, or something else moved the weights"
        )
        return RunBound(math.inf, {}, 1.0, "not_applicable", reason)
    if reason:
        return RunBound(math.inf, {}, confidence if gap else 1.0, "not_applicable", reason, gap)
    terms = {name: value / float(np.sum(weights)) for name, value in sums.items()}
    noise = f"noise by Markov at {failure:g}" if sigma else "no noise, as sigma = 0"
    reason = f"every step of {T} counted; {noise}"
    return RunBound(math.fsum(terms.values()), terms, confidence, "applies", reason, gap)
