"""The convergence rates of the paper with explicit constants (Kim & Oh 2026, Theorems 1, 3 and 4)."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from muonlab import _checks
from muonlab.theory.alignment import alignment_terms, theorem_beta
from muonlab.theory.bound import Bound, ProblemConstants, checked_beta

Constants = Literal["paper", "sharp"]
CONSTANTS: tuple[Constants, ...] = ("paper", "sharp")


class Tuned(NamedTuple):
    """Step size ``eta`` and momentum ``beta`` that a theorem chooses."""

    eta: float
    beta: float


def tuned_muon(*, L: float, D: float, sigma: float, r: int, B: int, T: int) -> Tuned:
    """Return ``η = √((1-β)D/(TL))`` and ``β = 1 - min{√(LDB)/(σ√(rT)), 1}`` (Kim & Oh 2026, Theorem 1).

    Example:
        >>> tuned = tuned_muon(L=1.0, D=1.0, sigma=0.1, r=4, B=16, T=10_000)
        >>> round(tuned.eta, 5), round(tuned.beta, 3)
        (0.00447, 0.8)
    """
    problem = ProblemConstants(L, D, sigma, r, B, T)
    beta = theorem_beta(problem)
    return Tuned(_muon_eta(problem, beta), beta)


def _muon_eta(problem: ProblemConstants, beta: float) -> float:
    return math.sqrt((1 - beta) * problem.D / (problem.T * problem.L))


def paper_muon_terms(problem: ProblemConstants, *, rho: float, eta: float, beta: float) -> dict[str, float]:
    """Return the terms of Theorem 1's last line before tuning, with ρ = 1 - ε; it holds for every η and β."""
    L, D, T, r = problem.L, problem.D, problem.T, problem.r
    chi, gain = 1 / rho, 2 - rho
    return {
        "descent": chi * problem.descent_term(eta),
        "curvature": chi * L * eta * gain**2 / 2,
        "drift": chi * 2 * beta * L * eta * gain / (1 - beta),
        "noise": chi * 2 * problem.noise * math.sqrt((1 - beta) / (1 + beta)),
        "start": chi * 2 * beta * math.sqrt(2 * r * L * D) / (T * (1 - beta)),
    }


def muon_bound(
    *,
    L: float,
    D: float,
    sigma: float,
    r: int,
    B: int,
    T: int,
    epsilon: float = 0.0,
    eta: float | None = None,
    beta: float | None = None,
    constants: Constants = "sharp",
) -> Bound:
    r"""Bound the average gradient norm of Muon (Kim & Oh 2026, Theorem 1; Theorem 4 with ``epsilon=0``).

    ``constants="paper"`` is the paper's line before tuning; ``"sharp"`` the alignment theorem with ρ = 1-ε, s = 1
    (Taylor steps keep ``‖O‖_op ≤ 1``) and the nuclear gradient-gap lemma, which takes √r out of the start-up term. The
    paper's tuned last line is not implemented: with β clipped at 0 it is proved only for ``σ√(rT) ≥ √(LDB)/4``, and it
    is false at σ = 0.

    Args:
        L: smoothness constant from the operator to the nuclear norm.
        D: ``f(W_0) - f*``.
        sigma: bound on one sample's standard deviation, Frobenius norm.
        r: ``min(m, n)``.
        B: batch size.
        T: number of steps.
        epsilon: polar error ε_q; 0 for the exact polar factor.
        eta: step size; None takes the theorem's.
        beta: momentum; None takes the theorem's.
        constants: ``"paper"`` or ``"sharp"``.

    Example:
        >>> b = muon_bound(L=1.0, D=1.0, sigma=0.0, r=64, B=1, T=100, constants="paper")
        >>> round(b.total, 6), b.eta, b.beta
        (0.15, 0.1, 0.0)
    """
    problem = ProblemConstants(L, D, sigma, r, B, T)
    epsilon = _checks.non_negative("epsilon", epsilon)
    _checks.one_of("constants", constants, CONSTANTS)
    used_beta = theorem_beta(problem) if beta is None else checked_beta(beta)
    used_eta = _muon_eta(problem, used_beta) if eta is None else _checks.positive("eta", eta)
    if epsilon >= 1.0:
        return Bound.none(f"epsilon = {epsilon:g}: Theorem 1 needs a polar error below 1", eta=used_eta, beta=used_beta)
    if constants == "paper":
        terms = paper_muon_terms(problem, rho=1 - epsilon, eta=used_eta, beta=used_beta)
        return Bound.of(terms, "Theorem 1, line before tuning", eta=used_eta, beta=used_beta)
    terms = alignment_terms(problem, rho=1 - epsilon, s=1.0, eta=used_eta, beta=used_beta, start="plain")
    reason = "alignment theorem with rho = 1 - epsilon, s = 1 (holds where the steps keep the operator norm below 1)"
    return Bound.of(terms, reason, eta=used_eta, beta=used_beta)


def tuned_sgdm(
    *,
    L: float,
    D: float,
    sigma: float,
    r: int,
    B: int,
    T: int,
    L_F: float | None = None,
    constants: Constants = "sharp",
) -> Tuned:
    """Return the step size and momentum for SGD with momentum (Kim & Oh 2026, Theorem 3).

    ``"paper"``: ``η = min{(1-β)/L, (1-β)²/(4L)}``, ``1-β = min{√(LDB)/(σ√T), 1}``. ``"sharp"``: ``η = (1-β)²/L`` with
    ``1-β = min{2√(LDB)/(σ√T), 1}``, for which the bound is at most ``√(6rLD/T) + 2(r²σ²LD/(BT))^{1/4}``.

    Example:
        >>> tuned = tuned_sgdm(L=1.0, D=1.0, sigma=1.0, r=4, B=16, T=10_000)
        >>> round(tuned.eta, 5), round(tuned.beta, 3)
        (0.0064, 0.92)
    """
    problem = ProblemConstants(_frobenius(L, L_F, r), D, sigma, r, B, T)
    _checks.one_of("constants", constants, CONSTANTS)
    beta = _sgdm_beta(problem, constants)
    return Tuned(_sgdm_eta(problem, beta, constants), beta)


def _frobenius(L: float, L_F: float | None, r: int) -> float:
    """Return the smoothness constant that SGD-M needs: L_F where it is known, else L (which is never smaller)."""
    if L_F is None:
        return L
    if not _checks.positive("L_F", L_F) <= _checks.positive("L", L) <= r * L_F * (1 + 1e-9):
        raise ValueError(f"L_F is at most L (L_F <= L <= r L_F), got L_F = {L_F} and L = {L}: check the two constants")
    return L_F


def _sgdm_beta(problem: ProblemConstants, constants: Constants) -> float:
    if problem.sigma == 0.0:
        return 0.0
    ratio = math.sqrt(problem.L * problem.D * problem.B) / (problem.sigma * math.sqrt(problem.T))
    return min(max(0.0, 1 - (2 * ratio if constants == "sharp" else ratio)), math.nextafter(1.0, 0.0))


def _sgdm_eta(problem: ProblemConstants, beta: float, constants: Constants) -> float:
    return (1 - beta) ** 2 / ((1 if constants == "sharp" else 4) * problem.L)


def paper_theta(problem: ProblemConstants, *, eta: float, beta: float) -> float:
    """Return ``θ = 4L²η̃²K/(1-β)²`` with ``K = β² + (1-β)²``, ``η̃ = η/(1-β)``; Theorem 3 needs θ < 1/4."""
    K = beta**2 + (1 - beta) ** 2
    return 4 * (problem.L * eta / (1 - beta)) ** 2 * K / (1 - beta) ** 2


def sharp_condition(problem: ProblemConstants, *, eta: float, beta: float) -> float:
    """Return ``(βLη̃/(1-β))² + Lη̃``, which the sharp bound needs to be at most 1."""
    y = problem.L * eta / (1 - beta)
    return (beta * y / (1 - beta)) ** 2 + y


def sgdm_bound(
    *,
    L: float,
    D: float,
    sigma: float,
    r: int,
    B: int,
    T: int,
    eta: float | None = None,
    beta: float | None = None,
    constants: Constants = "sharp",
    L_F: float | None = None,
) -> Bound:
    r"""Bound the average gradient norm of SGD with momentum (Kim & Oh 2026, Theorem 3, by way of Lemma 5).

    The terms stand under one root: their squares add up to the square of the total. SGD-M needs only the Frobenius
    smoothness constant ``L_F``, which lies between L/r and L. With ``L_F = L`` Muon saves √r, as the paper's Table 1
    says; with ``L_F = L/r`` nothing of that advantage is left.

    Args:
        L: smoothness constant from the operator to the nuclear norm.
        D: ``f(W_0) - f*``.
        sigma: bound on one sample's standard deviation, Frobenius norm.
        r: ``min(m, n)``.
        B: batch size.
        T: number of steps.
        eta: step size of ``W ← W - η M``; None takes the theorem's.
        beta: momentum; None takes the theorem's.
        constants: ``"paper"``, or ``"sharp"`` (own derivation, valid for larger steps).
        L_F: Frobenius smoothness constant; None uses L.

    Example:
        >>> b = sgdm_bound(L=1.0, D=1.0, sigma=0.0, r=1, B=1, T=200)
        >>> round(b.total, 6), b.eta
        (0.1, 1.0)
    """
    problem = ProblemConstants(_frobenius(L, L_F, r), D, sigma, r, B, T)
    _checks.one_of("constants", constants, CONSTANTS)
    used_beta = _sgdm_beta(problem, constants) if beta is None else checked_beta(beta)
    used_eta = _sgdm_eta(problem, used_beta, constants) if eta is None else _checks.positive("eta", eta)
    squares, reason = (_paper_sgdm if constants == "paper" else _sharp_sgdm)(problem, used_eta, used_beta)
    if squares is None:
        return Bound.none(reason, eta=used_eta, beta=used_beta)
    terms = {name: math.sqrt(problem.r * value) for name, value in squares.items()}
    return Bound.of(terms, reason, eta=used_eta, beta=used_beta, rss=True)


def _paper_sgdm(problem: ProblemConstants, eta: float, beta: float) -> tuple[dict[str, float] | None, str]:
    """Return the squared terms of the paper's line before tuning, or None with the reason."""
    L, D, T = problem.L, problem.D, problem.T
    theta = paper_theta(problem, eta=eta, beta=beta)
    if L * eta > (1 - beta) * (1 + 1e-12):
        return None, f"eta = {eta:g} exceeds (1 - beta)/L = {(1 - beta) / L:g}: the descent step of Theorem 3 fails"
    if 1 - 4 * theta <= 1e-15:
        return None, f"theta = {theta:g} is not below 1/4: the printed bound of Theorem 3 divides by 1 - 4 theta"
    squares = {
        "descent": 2 * (1 - 2 * theta) / (1 - 4 * theta) * (1 - beta) * problem.descent_term(eta),
        "start": 4 * beta * L * D / ((1 - beta) * T) / (1 - 4 * theta),
        "noise": 2 * (1 - beta) / (1 + beta) * problem.sigma**2 / problem.B / (1 - 4 * theta),
    }
    return squares, f"Theorem 3, line before tuning, theta = {theta:g}"


def _sharp_sgdm(problem: ProblemConstants, eta: float, beta: float) -> tuple[dict[str, float] | None, str]:
    """Return the squared terms of the sharp bound, or None with the reason."""
    L, D, T = problem.L, problem.D, problem.T
    condition = sharp_condition(problem, eta=eta, beta=beta)
    if condition > 1 + 1e-12:
        return None, f"(beta L eta'/(1 - beta))^2 + L eta' = {condition:g} exceeds 1: take eta <= (1 - beta)^2/L"
    squares = {
        "descent": 2 * (1 - beta) * problem.descent_term(eta),
        "start": 2 * beta**2 * L * D / ((1 - beta) * T),
        "noise": (1 - beta) * problem.sigma**2 / problem.B,
    }
    return squares, "sharp SGD-M bound"
