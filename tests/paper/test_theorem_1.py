"""Theorem 1: the rate of Muon with q Newton-Schulz steps, line before tuning (Kim & Oh 2026, Theorem 1)."""

import math
from itertools import product

import mpmath
import numpy as np
import pytest

from muonlab.polynomials import Schedule, taylor
from muonlab.theory import muon_bound, tuned_muon
from tests.paper.simulation import (
    bowl,
    by_newton_schulz,
    gaussian,
    mean_stationarity,
    observed_error,
    orthogonal,
    quadratic,
    rescaled,
    run,
    svd_polar,
    wells,
)

SHAPE, T, Q, SEEDS = (3, 6), 40, 6, 3
OTHER = [(0.02, 0.9), (0.3, 0.0)]


def holds(measured, bound, **factors):
    """Check ``measured ≤ Σ terms``, some of them multiplied by a (wrong) factor."""
    return measured <= rescaled(bound.terms, **factors) * (1 + 1e-9)


def printed_terms(L, D, sigma, r, B, T, epsilon, eta, beta):
    """The paper's line before tuning, with 50 digits."""
    with mpmath.workdps(50):
        L, D, sigma, epsilon, eta, beta = map(mpmath.mpf, (L, D, sigma, epsilon, eta, beta))
        chi = 1 / (1 - epsilon)
        return {
            "descent": float(chi * D / (T * eta)),
            "curvature": float(chi * L * eta * (1 + epsilon) ** 2 / 2),
            "drift": float(chi * 2 * beta * L * eta * (1 + epsilon) / (1 - beta)),
            "noise": float(chi * 2 * sigma * mpmath.sqrt(mpmath.mpf(r) / B) * mpmath.sqrt((1 - beta) / (1 + beta))),
            "start": float(chi * 2 * beta * mpmath.sqrt(2 * r * L * D) / (T * (1 - beta))),
        }


def problem(which):
    rng = np.random.default_rng(100 + which)
    objective = wells(3) if which else quadratic(rng.standard_normal((4, 3)) / 2, rng.standard_normal(SHAPE))
    return objective, rng.standard_normal(SHAPE)


def test_measured_averages_never_exceed_the_bound():
    for which, sigma, choice in product([0, 1], [0.0, 3.0], [None, *OTHER]):
        objective, start = problem(which)
        given = {"L": objective.L, "D": objective.value(start), "sigma": sigma, "r": 3, "B": 2, "T": T}
        eta, beta = tuned_muon(**given) if choice is None else choice
        direction = by_newton_schulz(taylor(2), Q)
        runs = [
            run(objective, start, direction, eta=eta, beta=beta, T=T, noise=gaussian(sigma, 2), seed=seed)
            for seed in range(SEEDS if sigma else 1)
        ]
        epsilon = max(observed_error(M, direction(M)) for one in runs for M in one.momenta)
        assert 0 < epsilon < 1
        assert max(one.gain.max() for one in runs) <= 1 + 1e-12
        for constants in ("paper", "sharp"):
            bound = muon_bound(epsilon=epsilon, eta=eta, beta=beta, constants=constants, **given)
            assert holds(mean_stationarity(runs), bound)


def test_the_terms_are_the_printed_ones_and_no_others():
    for epsilon, beta, sigma in product([0.0, 0.1, 0.6], [0.0, 0.3, 0.99], [0.0, 2.5]):
        given = {"L": 1.7, "D": 0.9, "sigma": sigma, "r": 5, "B": 3, "T": 40}
        given |= {"epsilon": epsilon, "eta": 0.07, "beta": beta}
        bound, expected = muon_bound(constants="paper", **given), printed_terms(**given)
        assert bound.terms.keys() == expected.keys()
        for name, value in expected.items():
            assert bound.terms[name] == pytest.approx(value, rel=1e-12, abs=0.0)
        assert bound.total == pytest.approx(sum(expected.values()), rel=1e-12, abs=0.0)


def test_the_tuned_step_and_momentum_are_the_theorems():
    for sigma in [0.0, 0.05, 2.0, 50.0]:
        L, D, r, B, steps = 2.0, 1.5, 4, 3, 200
        eta, beta = tuned_muon(L=L, D=D, sigma=sigma, r=r, B=B, T=steps)
        ratio = math.inf if sigma == 0 else math.sqrt(L * D * B) / (sigma * math.sqrt(r * steps))
        assert beta == pytest.approx(1 - min(ratio, 1.0), rel=1e-12, abs=0.0)
        assert eta == pytest.approx(math.sqrt((1 - beta) * D / (steps * L)), rel=1e-12, abs=0.0)
        bound = muon_bound(L=L, D=D, sigma=sigma, r=r, B=B, T=steps, constants="paper")
        assert (bound.eta, bound.beta) == (eta, beta)


def steady_descent(r=9, steps=400):
    """A bowl descended at constant speed to its bottom, where ``D/(Tη)·χ`` is almost attained."""
    schedule = Schedule.repeat(taylor(1), 1)
    epsilon = 1 - schedule(1 / math.sqrt(r))
    objective, start = bowl(r), orthogonal(np.random.default_rng(1), r)
    eta = 1 / (steps * (1 - epsilon))
    one = run(objective, start, by_newton_schulz(schedule, prescale="frobenius"), eta=eta, beta=0.0, T=steps)
    given = {"L": objective.L, "D": objective.value(start), "sigma": 0.0, "r": r, "B": 1, "T": steps}
    return one, muon_bound(epsilon=epsilon, eta=eta, beta=0.0, constants="paper", **given), epsilon


def test_the_factor_chi_cannot_be_dropped_nor_its_sign_changed():
    one, bound, epsilon = steady_descent()
    assert 0.4 < epsilon < 0.6
    assert holds(one.stationarity, bound)
    assert not holds(one.stationarity, bound, descent=1 - epsilon)
    assert not holds(one.stationarity, bound, descent=(1 - epsilon) / (1 + epsilon))
    assert not holds(one.stationarity, bound, descent=0.95)
    assert not holds(one.stationarity, bound, descent=0.0)


def test_half_the_curvature_is_rejected_by_one_step_to_the_bottom():
    r = 4
    objective, start = bowl(r), orthogonal(np.random.default_rng(2), r)
    direction = by_newton_schulz(taylor(2), 8)
    epsilon = observed_error(start, direction(start))
    one = run(objective, start, direction, eta=1.0, beta=0.0, T=1)
    given = {"L": objective.L, "D": objective.value(start), "sigma": 0.0, "r": r, "B": 1, "T": 1}
    bound = muon_bound(epsilon=epsilon, eta=1.0, beta=0.0, constants="paper", **given)
    assert one.stationarity == pytest.approx(bound.total, rel=1e-6, abs=0.0)
    assert holds(one.stationarity, bound)
    assert not holds(one.stationarity, bound, curvature=0.5)
    assert not holds(one.stationarity, bound, descent=0.5)
    assert not holds(one.stationarity, bound, curvature=0.99)


def test_the_drift_of_stale_momentum_cannot_be_dropped():
    """Momentum makes the iterate swing about the minimum wider than one step."""
    for constants in ["paper", "sharp"]:
        objective, start, steps = bowl(1), np.array([[1.45]]), 400
        one = run(objective, start, svd_polar, eta=1.0, beta=0.5, T=steps)
        given = {"L": 1.0, "D": objective.value(start), "sigma": 0.0, "r": 1, "B": 1, "T": steps}
        bound = muon_bound(eta=1.0, beta=0.5, constants=constants, **given)
        assert holds(one.stationarity, bound)
        assert not holds(one.stationarity, bound, drift=0.0)
        assert not holds(one.stationarity, bound, drift=0.1)


def test_the_sharp_constants_are_never_worse_than_the_papers():
    for epsilon, beta in product([0.0, 0.2, 0.9], [0.0, 0.8]):
        given = {"L": 1.0, "D": 2.0, "sigma": 1.0, "r": 9, "B": 2, "T": 50}
        given |= {"epsilon": epsilon, "eta": 0.1, "beta": beta}
        paper, sharp = (muon_bound(constants=c, **given) for c in ("paper", "sharp"))
        assert all(sharp.terms[name] <= paper.terms[name] * (1 + 1e-12) for name in paper.terms)
        assert sharp.total < paper.total or (epsilon == 0.0 and beta == 0.0)
