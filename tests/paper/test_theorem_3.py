"""Theorem 3: the rate of SGD with momentum in the nuclear norm (Kim & Oh 2026, Theorem 3)."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from muonlab.theory import sgdm_bound, tuned_sgdm
from tests.paper.simulation import bowl, gaussian, orthogonal, quadratic, sgdm, wells

T, SEEDS = 40, 3


def holds(measured, bound, **factors):
    """Check ``measured² ≤ Σ terms²``, some of the squared terms multiplied by a (wrong) factor."""
    square = sum(factors.get(name, 1.0) * value**2 for name, value in bound.terms.items())
    return set(factors) <= set(bound.terms) and measured**2 <= square * (1 + 1e-9)


def root_mean_square(runs):
    """``(mean ‖∇f(W_{t-1})‖_*²)^{1/2}``, which is what the proof bounds; at least the mean of the norms."""
    return math.sqrt(np.mean([np.mean(one.gradients**2) for one in runs]))


def largest_eta(beta, L):
    """Root of ``(βy/(1-β))² + y = 1`` with ``y = Lη/(1-β)``: the largest step of the sharp bound."""
    b = beta / (1 - beta)
    return (1 - beta) / L * 2 / (1 + math.sqrt(1 + 4 * b * b))


def printed_squares(L, D, sigma, r, B, T, eta, beta, subtract=4):
    """The paper's squared terms in rationals, with ``1/(1-4θ)`` (or another multiple of θ)."""
    L, D, sigma, eta, beta = map(Fraction, (L, D, sigma, eta, beta))
    theta = 4 * (L * eta / (1 - beta)) ** 2 * (beta**2 + (1 - beta) ** 2) / (1 - beta) ** 2
    share = 1 - subtract * theta
    return theta, {
        "descent": r * 2 * (1 - 2 * theta) / share * (1 - beta) * D / (eta * T),
        "start": r * 4 * beta * L * D / ((1 - beta) * T) / share,
        "noise": r * 2 * (1 - beta) / (1 + beta) * sigma**2 / B / share,
    }


def problem(which):
    rng = np.random.default_rng(which)
    objective = wells(3) if which else quadratic(rng.standard_normal((4, 3)) / 2, rng.standard_normal((3, 5)))
    return objective, rng.standard_normal((3, 5))


def test_measured_averages_never_exceed_the_bound():
    for constants, frobenius, which, sigma, chosen in product(
        ["paper", "sharp"], [False, True], [0, 1], [0.0, 2.0], [None, 0.8]
    ):
        objective, start = problem(which)
        given = {"L": objective.L, "D": objective.value(start), "sigma": sigma, "r": 3, "B": 2, "T": T}
        if frobenius:
            given["L_F"] = objective.L_F
        L = given.get("L_F", objective.L)
        if chosen is None:
            eta, beta = tuned_sgdm(constants=constants, **given)
            eta *= 0.9 if constants == "paper" else 1.0  # at its own choice with β = 0 the paper's bound is infinite
        else:
            beta = chosen
            eta = 0.9 * (1 - beta) ** 2 / (4 * L) if constants == "paper" else largest_eta(beta, L)
        runs = [
            sgdm(objective, start, eta=eta, beta=beta, T=T, noise=gaussian(sigma, 2), seed=seed)
            for seed in range(SEEDS if sigma else 1)
        ]
        bound = sgdm_bound(eta=eta, beta=beta, constants=constants, **given)
        assert bound.status == "applies"
        assert holds(float(np.mean([one.stationarity for one in runs])), bound)
        assert holds(root_mean_square(runs), bound)


def test_one_step_to_the_bottom_attains_the_sharp_bound_and_rejects_smaller_constants():
    r = 4
    objective, start = bowl(r), orthogonal(np.random.default_rng(1), r)
    one = sgdm(objective, start, eta=1.0, beta=0.0, T=1)
    given = {"L": objective.L, "D": objective.value(start), "sigma": 0.0, "r": r, "B": 1, "T": 1}
    bound = sgdm_bound(eta=1.0, beta=0.0, L_F=objective.L_F, **given)
    assert one.stationarity == pytest.approx(bound.total, rel=1e-9, abs=0.0)
    assert holds(one.stationarity, bound)
    assert not holds(one.stationarity, bound, descent=0.5)
    assert not holds(one.stationarity, bound, descent=0.99)
    assert not holds(one.stationarity, bound, descent=1 / r)


def test_noise_of_flat_spectrum_needs_the_root_of_the_rank_and_one_power_of_one_minus_beta():
    r, steps = 9, 1500

    def flat(rng, G):
        return rng.choice([-1.0, 1.0]) * np.eye(r) / math.sqrt(r) + 0.0 * G

    for beta in [0.0, 0.9]:
        objective, eta = bowl(r), largest_eta(beta, 1.0)
        one = sgdm(objective, np.zeros((r, r)), eta=eta, beta=beta, T=steps, noise=flat)
        given = {"L": objective.L, "D": 0.0, "sigma": 1.0, "r": r, "B": 1, "T": steps}
        bound = sgdm_bound(eta=eta, beta=beta, L_F=1.0, **given)
        assert holds(one.stationarity, bound)
        assert holds(root_mean_square([one]), bound)
        assert not holds(one.stationarity, bound, noise=1 / r)
        if beta:
            assert not holds(one.stationarity, bound, noise=1 - beta)
        else:
            assert one.stationarity == pytest.approx(bound.total, rel=2e-3, abs=0.0)
            assert not holds(one.stationarity, bound, noise=0.5)


def test_the_start_up_term_cannot_be_dropped():
    beta, steps = 0.05, 60
    eta = largest_eta(beta, 1.0)
    one = sgdm(bowl(1), np.ones((1, 1)), eta=eta, beta=beta, T=steps)
    bound = sgdm_bound(L=1.0, D=0.5, sigma=0.0, r=1, B=1, T=steps, eta=eta, beta=beta)
    assert holds(root_mean_square([one]), bound)
    assert not holds(root_mean_square([one]), bound, start=0.0)
    assert not holds(root_mean_square([one]), bound, start=0.7)


def test_the_papers_terms_are_the_printed_ones():
    for beta, share in product([0.0, 0.25, 0.5, 0.875], [0.25, 0.5, 0.9375]):
        L = 2.0
        given = {"L": L, "D": 1.5, "sigma": 0.5, "r": 3, "B": 2, "T": 50, "beta": beta}
        given["eta"] = share * (1 - beta) ** 2 / (4 * L)
        bound, (theta, squares) = sgdm_bound(constants="paper", **given), printed_squares(**given)
        assert theta < Fraction(1, 4)
        for name, value in squares.items():
            assert bound.terms[name] ** 2 == pytest.approx(float(value), rel=1e-9, abs=0.0)
        assert bound.total**2 == pytest.approx(float(sum(squares.values())), rel=1e-9, abs=0.0)
        wrong = printed_squares(subtract=0, **given)[1]
        assert bound.total**2 > float(sum(wrong.values())) * 1.02


def test_without_the_divisor_the_papers_bound_is_violated_and_the_library_gives_none_there():
    """One step down a bowl at θ just below 1/2, where ``1 - 2θ`` alone would promise almost nothing left."""
    eta = 0.35  # θ = 4η² = 0.49
    one = sgdm(bowl(1), np.ones((1, 1)), eta=eta, beta=0.0, T=1)
    given = {"L": 1.0, "D": 0.5, "sigma": 0.0, "r": 1, "B": 1, "T": 1, "eta": eta, "beta": 0.0}
    theta, wrong = printed_squares(subtract=0, **given)
    assert float(theta) == pytest.approx(0.49, rel=1e-12, abs=0.0)
    assert one.stationarity**2 > float(sum(wrong.values()))
    bound = sgdm_bound(constants="paper", **given)
    assert bound.status == "not_applicable"
    assert math.isinf(bound.total)
    assert "theta" in bound.reason


def test_the_papers_own_step_degenerates_as_beta_tends_to_zero():
    given = {"L": 1.0, "D": 1.0, "sigma": 1.0, "r": 2, "B": 1, "T": 100, "constants": "paper"}
    totals = [sgdm_bound(eta=(1 - b) ** 2 / 4, beta=b, **given).total for b in (0.5, 0.1, 0.01, 1e-4)]
    assert totals[0] < totals[1] < totals[2] < totals[3]
    assert math.isinf(sgdm_bound(eta=0.25, beta=0.0, **given).total)
    for beta in (0.25, 0.5):
        theta, _ = printed_squares(1.0, 1.0, 1.0, 2, 1, 100, (1 - beta) ** 2 / 4, beta)
        assert 1 - 4 * theta == 2 * Fraction(beta) * (1 - Fraction(beta))


def test_the_theorem_is_true_with_its_own_step_and_momentum_though_the_printed_bound_does_not_give_its_rate():
    """The sharp bound there: ``√11 (r²σ²LD/(BT))^{1/4}`` unclipped and ``3√(rLD/T)`` clipped, both nearly attained."""
    L, D, r, B, largest = 1.5, 0.7, 6, 2, {True: 0.0, False: 0.0}
    for sigma, steps in product([0.0, 0.01, 0.458, 4.0, 50.0], [10, 1000, 10**7]):
        given = {"L": L, "D": D, "sigma": sigma, "r": r, "B": B, "T": steps}
        eta, beta = tuned_sgdm(constants="paper", **given)
        total = sgdm_bound(constants="sharp", eta=eta, beta=beta, **given).total
        if beta == 0.0:
            rate = 3 * math.sqrt(r * L * D / steps)
        else:
            rate = math.sqrt(11) * (r**2 * sigma**2 * L * D / (B * steps)) ** 0.25
        assert total <= rate * (1 + 1e-12)
        largest[beta == 0.0] = max(largest[beta == 0.0], total / rate)
    assert min(largest.values()) > 0.99
    given = {"L": 1.0, "D": 1.0, "sigma": 1.0, "r": 1, "B": 1}
    printed = [sgdm_bound(constants="paper", T=T, **given, **paper_choice(T)).total for T in (10**3, 10**9)]
    assert printed == pytest.approx([2.172, 2.121], abs=5e-4)  # a millionfold T changes nothing


def paper_choice(T):
    """The theorem's η and β for L = D = σ = r = B = 1."""
    eta, beta = tuned_sgdm(L=1.0, D=1.0, sigma=1.0, r=1, B=1, T=T, constants="paper")
    return {"eta": eta, "beta": beta}


def test_too_large_a_step_gives_no_bound():
    for constants in ["paper", "sharp"]:
        bound = sgdm_bound(L=1.0, D=1.0, sigma=0.0, r=2, B=1, T=10, eta=1.5, beta=0.0, constants=constants)
        assert bound.status == "not_applicable"
        grown = sgdm(bowl(1), np.ones((1, 1)), eta=2.5, beta=0.0, T=30)
        assert grown.gradients[-1] > 1e4


def test_the_papers_choice_is_the_theorems():
    for sigma in [0.5, 8.0]:
        L, D, r, B, steps = 1.5, 2.0, 6, 2, 400
        eta, beta = tuned_sgdm(L=L, D=D, sigma=sigma, r=r, B=B, T=steps, constants="paper")
        keep = min(1.0, math.sqrt(L * D * B) / (sigma * math.sqrt(steps)))
        assert 1 - beta == pytest.approx(keep, rel=1e-12, abs=0.0)
        assert eta == pytest.approx(min(keep / L, keep**2 / (4 * L)), rel=1e-12, abs=0.0)
