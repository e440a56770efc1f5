"""The alignment theorem, of which the paper's rates are special cases; for constants, and for networks.

For any direction ``O_t`` and ``W_t = W_{t-1} - η_t O_t`` let ``ρ_t = ⟨M_t, O_t⟩/‖M_t‖_*`` (descent) and
``s_t = ‖O_t‖_op`` (gain). Nothing else about the orthogonalizer enters the convergence proof, and at the best step
size the bound depends on constants ρ and s through the alignment ``ρ/s`` only. Proof: docs/theory/alignment-theorem.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from muonlab import _checks
from muonlab.theory.bound import Bound, ProblemConstants, checked_beta

MomentumStart = Literal["plain", "corrected"]
_CHUNK = 1 << 20
_MOST_TERMS = 1 << 28


class MomentumFactors(NamedTuple):
    """Averages over t = 1…T of what momentum costs: staleness ``a_T``, noise kept ``b_T``, mean square ``ν²``."""

    drift: float
    noise: float
    noise_square: float


def momentum_factors(beta: float, T: int, start: MomentumStart = "plain") -> MomentumFactors:
    """Return ``a_T`` and ``b_T`` of the alignment theorem.

    ``"plain"`` bounds them by their limits ``β/(1-β)`` and ``√((1-β)/(1+β))``; ``"corrected"`` averages
    ``β/(1-β) - tβ^t/(1-β^t)`` and ``ν_t`` exactly, as the bias-corrected momentum allows.

    Example:
        >>> factors = momentum_factors(0.9, T=100)
        >>> round(factors.drift, 3), round(factors.noise, 3)
        (9.0, 0.229)
    """
    beta, T = checked_beta(beta), _checks.integer("T", T, at_least=1)
    _checks.one_of("start", start, ("plain", "corrected"))
    limit_drift, limit_square = beta / (1 - beta), (1 - beta) / (1 + beta)
    if start == "plain" or beta == 0.0:
        return MomentumFactors(limit_drift, math.sqrt(limit_square), limit_square)
    # past `settled`, β^t < 1e-22 and every summand equals its limit to the last digit
    settled = min(T, math.ceil(-51 / math.log(beta)))
    if settled > _MOST_TERMS:
        raise ValueError(
            f"start='corrected' adds up {settled:.3g} steps one by one, and the rule is at most {_MOST_TERMS:.0g}: "
            f"use start='plain' for such a T and beta"
        )
    drift = noise = square = mass = moment = 0.0  # mass_t = Σ_{j<t} β^j, moment_t = Σ_{j<t} j β^j
    for first in range(1, settled + 1, _CHUNK):
        t = np.arange(first, min(first + _CHUNK, settled + 1), dtype=np.float64)
        before = np.exp((t - 1) * math.log(beta))
        masses, moments = mass + np.cumsum(before), moment + np.cumsum((t - 1) * before)
        nu_square = (1 + beta * before) / ((1 + beta) * masses)
        drift += float(np.sum(moments / masses))  # = β/(1-β) - tβ^t/(1-β^t), without its cancellation near β = 1
        noise += float(np.sum(np.sqrt(nu_square)))
        square += float(np.sum(nu_square))
        mass, moment = float(masses[-1]), float(moments[-1])
    rest = T - settled
    return MomentumFactors(
        (drift + rest * limit_drift) / T,
        (noise + rest * math.sqrt(limit_square)) / T,
        (square + rest * limit_square) / T,
    )


def theorem_beta(problem: ProblemConstants) -> float:
    """Return ``β = 1 - min{√(LDB)/(σ√(rT)), 1}``, and 0 without noise (Kim & Oh 2026, Theorem 1)."""
    if problem.sigma == 0.0:
        return 0.0
    ratio = math.sqrt(problem.L * problem.D * problem.B) / (problem.sigma * math.sqrt(problem.r * problem.T))
    return min(max(0.0, 1 - ratio), math.nextafter(1.0, 0.0))


def alignment_terms(
    problem: ProblemConstants, *, rho: float, s: float, eta: float, beta: float, start: MomentumStart
) -> dict[str, float]:
    """Return the named terms of the alignment theorem for ``ρ_t ≥ rho > 0`` and ``s_t ≤ s`` fixed beforehand.

    Descent and curvature come from the descent lemma with Hölder's inequality, the start-up term from the gradient gap,
    here in the nuclear norm (Kim & Oh 2026, Lemmas 4, 6 and 7).
    """
    factors = momentum_factors(beta, problem.T, start)
    L, D, T = problem.L, problem.D, problem.T
    terms = {
        "descent": problem.descent_term(eta) / rho,
        "curvature": L * eta * s * s / 2 / rho,
        "drift": (rho + s) * L * eta * s * factors.drift / rho,
        "noise": (rho + s) * problem.noise * factors.noise / rho,
    }
    if start == "plain":
        terms["start"] = (rho + s) * beta * math.sqrt(2 * L * D) / (T * (1 - beta)) / rho
    return terms


def best_eta(problem: ProblemConstants, *, rho: float, s: float, beta: float, start: MomentumStart) -> float:
    """Return the η that balances ``D/(Tη)`` against the terms linear in η."""
    curvature = s * s / 2 + (rho + s) * s * momentum_factors(beta, problem.T, start).drift
    return math.sqrt(problem.D / (problem.T * problem.L * curvature))


def alignment_bound(
    *,
    L: float,
    D: float,
    sigma: float,
    r: int,
    B: int,
    T: int,
    alignment: float,
    op_norm: float = 1.0,
    eta: float | None = None,
    beta: float | None = None,
    start: MomentumStart = "plain",
) -> Bound:
    r"""Bound the average gradient norm of any method of known alignment (generalises Kim & Oh 2026, Theorem 1).

    With ``ρ = alignment·op_norm`` and ``s = op_norm``, both fixed before the run (for instance by
    :func:`alignment_floor`; a value observed during the run is not such a constant, see :func:`run_bound`):

    .. math::
        \frac1T \sum_t E\|\nabla_t\|_* \le \frac1\rho \Big[ \frac{D}{T\eta} + \frac{L\eta s^2}{2}
        + (\rho + s) \big(L\eta s\, a_T + \sigma\sqrt{r/B}\; b_T\big) \Big]

    plus a start-up term with ``start="plain"``.

    For a network pass ``L`` of the product norm, ``r = Σ_l r_l``, ``sigma² = Σ_l c_l² σ_l²`` with the lengths ``c_l``
    of the layers' steps, and the alignment of :func:`network_alignment`; every trained parameter must be counted.

    Args:
        L: smoothness constant from the operator to the nuclear norm.
        D: ``f(W_0) - f*``.
        sigma: bound on one sample's standard deviation, Frobenius norm.
        r: rank bound, ``min(m, n)``.
        B: batch size.
        T: number of steps.
        alignment: ``ρ/s``, at most 1; zero or less gives no bound.
        op_norm: gain s.
        eta: step size; None takes the best one for this β.
        beta: momentum; None takes the theorem's choice.
        start: ``"plain"``, or ``"corrected"`` for bias-corrected averages, which drop the start-up term but keep more
            noise in the first 1/(1-β) steps; at the theorem's β it is usually the sharper one.

    Example:
        >>> b = alignment_bound(L=1.0, D=1.0, sigma=0.0, r=4, B=1, T=100, alignment=0.5)
        >>> round(b.total, 4), b.dominant
        (0.2828, 'descent')
    """
    problem = ProblemConstants(L, D, sigma, r, B, T)
    a = _checks.real("alignment", alignment, low=-1.0, high=1.0)
    s = _checks.positive("op_norm", op_norm)
    _checks.one_of("start", start, ("plain", "corrected"))
    rho = a * s
    used_beta = theorem_beta(problem) if beta is None else checked_beta(beta)
    if a <= 0.0:
        return Bound.none(
            f"alignment = {a:g}: the direction need not descend", eta=eta if eta is not None else 0.0, beta=used_beta
        )
    used_eta = (
        best_eta(problem, rho=rho, s=s, beta=used_beta, start=start) if eta is None else _checks.positive("eta", eta)
    )
    terms = alignment_terms(problem, rho=rho, s=s, eta=used_eta, beta=used_beta, start=start)
    return Bound.of(terms, f"alignment theorem with rho = {rho:g}, s = {s:g}", eta=used_eta, beta=used_beta)


class Alignment(NamedTuple):
    """Descent ρ, gain s and alignment ρ/s of one step; all zero when the momentum is zero."""

    descent: float
    gain: float
    alignment: float


def network_alignment(
    inner: Sequence[float], nuclear: Sequence[float], gain: Sequence[float], lengths: Sequence[float] | None = None
) -> Alignment:
    """Combine layers under the dual pair ``Σ_l c_l ‖·‖_*`` and ``max_l ‖·‖_op / c_l``; without lengths all c_l are 1.

    Args:
        inner: ``⟨M_l, O_l⟩`` for each layer.
        nuclear: ``‖M_l‖_*`` for each layer.
        gain: ``‖O_l‖_op`` for each layer.
        lengths: ``c_l``, the lengths of the layers' steps up to a common factor; a layer of length zero is left out.

    Example:
        >>> network_alignment([3.0, 1.0], [3.0, 2.0], [1.0, 1.0]).alignment
        0.8
    """
    c = [1.0] * len(inner) if lengths is None else lengths
    if not len(inner) == len(nuclear) == len(gain) == len(c) or not len(inner):
        raise ValueError(
            f"network_alignment needs one inner product, nuclear norm and gain per layer, got "
            f"{len(inner)}, {len(nuclear)} and {len(gain)} for {len(c)} lengths: pass sequences of one length"
        )
    for name, values in (("inner", inner), ("nuclear", nuclear), ("gain", gain), ("lengths", c)):
        for value in values:
            _checks.real(name, value, low=-math.inf if name == "inner" else 0.0)
    total = math.fsum(c_l * norm for c_l, norm in zip(c, nuclear, strict=True))
    s = max((s_l for c_l, s_l in zip(c, gain, strict=True) if c_l), default=0.0)
    if total == 0.0 or s == 0.0:
        return Alignment(0.0, 0.0, 0.0)
    rho = math.fsum(c_l * product for c_l, product in zip(c, inner, strict=True)) / total
    return Alignment(rho, s, rho / s)
