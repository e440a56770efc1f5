"""Theorem 4: the rate of Muon with the exact polar factor, ε = 0 in Theorem 1 (Kim & Oh 2026, Theorem 4)."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from muonlab import polar
from muonlab.theory import chi, iterations_for, muon_bound, polar_error, tuned_muon
from tests.paper.simulation import (
    Adversary,
    bowl,
    gaussian,
    huber,
    mean_stationarity,
    orthogonal,
    quadratic,
    rescaled,
    run,
    svd_polar,
    wells,
)

T, SEEDS = 40, 3


def by_svd(M):
    """Algorithm 2, line 5, as muonlab computes it."""
    return polar(torch.from_numpy(M)).numpy()


def holds(measured, bound, **factors):
    """Check ``measured ≤ Σ terms``, some of them multiplied by a (wrong) factor."""
    return measured <= rescaled(bound.terms, **factors) * (1 + 1e-9)


def test_measured_averages_never_exceed_the_bound():
    for which, shape, sigma, choice in product([0, 1], [(3, 3), (2, 6)], [0.0, 3.0], [None, (0.2, 0.4)]):
        rng, r = np.random.default_rng([which, *shape]), min(shape)
        objective = wells(r) if which else quadratic(rng.standard_normal((4, r)) / 2, rng.standard_normal(shape))
        start = rng.standard_normal(shape)
        given = {"L": objective.L, "D": objective.value(start), "sigma": sigma, "r": r, "B": 3, "T": T}
        eta, beta = tuned_muon(**given) if choice is None else choice
        runs = [
            run(objective, start, by_svd, eta=eta, beta=beta, T=T, noise=gaussian(sigma, 3), seed=seed)
            for seed in range(SEEDS if sigma else 1)
        ]
        for constants in ("paper", "sharp"):
            assert holds(mean_stationarity(runs), muon_bound(eta=eta, beta=beta, constants=constants, **given))


def test_one_step_to_the_bottom_attains_it_and_rejects_smaller_constants():
    for constants, r in product(["paper", "sharp"], [1, 4]):
        objective, start = bowl(r, 0.7), 2.0 * orthogonal(np.random.default_rng(r), r)
        one = run(objective, start, by_svd, eta=2.0, beta=0.0, T=1)
        given = {"L": objective.L, "D": objective.value(start), "sigma": 0.0, "r": r, "B": 1, "T": 1}
        bound = muon_bound(eta=2.0, beta=0.0, constants=constants, **given)
        assert one.stationarity == pytest.approx(bound.total, rel=1e-9, abs=0.0)
        assert holds(one.stationarity, bound)
        for wrong in (
            {"curvature": 0.5},
            {"curvature": -1.0},
            {"descent": 0.5},
            {"curvature": 0.99},
            {"descent": 0.99},
        ):
            assert not holds(one.stationarity, bound, **wrong)


def test_no_larger_power_of_t_in_the_descent_term_holds():
    """Many small steps down a bowl: ``D/(Tη)`` is almost attained, so ``D/(T^1.1 η)`` is not enough."""
    steps, r = 300, 4
    objective, start = bowl(r), orthogonal(np.random.default_rng(3), r)
    one = run(objective, start, by_svd, eta=1 / steps, beta=0.0, T=steps)
    given = {"L": objective.L, "D": objective.value(start), "sigma": 0.0, "r": r, "B": 1, "T": steps}
    bound = muon_bound(eta=1 / steps, beta=0.0, constants="paper", **given)
    assert holds(one.stationarity, bound)
    assert not holds(one.stationarity, bound, descent=steps**-0.1)


def stalled(beta, r=9, steps=4000):
    """A run that the worst noise keeps far from the minimum of a Huber function, and its bound."""
    objective, start, noise = huber(r, 100.0), 600.0 * np.eye(r), Adversary(beta)
    one = run(objective, start, svd_polar, eta=1.0, beta=beta, T=steps, noise=noise)
    given = {"L": objective.L, "D": objective.value(start), "sigma": noise.sigma, "r": r, "B": 1, "T": steps}
    return one.stationarity, muon_bound(eta=1.0, beta=beta, constants="paper", **given)


def test_the_worst_noise_stays_within_the_bound_and_needs_its_rank_and_momentum_factor():
    for beta in (0.0, 0.8):
        measured, bound = stalled(beta)
        assert holds(measured, bound)
        assert measured == pytest.approx(9, rel=0.05, abs=0.0)
        assert not holds(measured, bound, noise=1 / 3)  # without √r
        if beta:
            assert not holds(measured, bound, noise=math.sqrt((1 - beta) / (1 + beta)))
            assert not holds(measured, bound, noise=(1 - beta) / 2)
        else:
            assert bound.terms["noise"] == pytest.approx(2 * measured, rel=0.05, abs=0.0)


def test_it_is_theorem_1_without_polar_error_and_the_limit_of_many_steps():
    given = {"L": 1.3, "D": 0.8, "sigma": 0.6, "r": 6, "B": 2, "T": 100}
    for constants in ("paper", "sharp"):
        exact = muon_bound(constants=constants, **given).total
        totals = [
            muon_bound(constants=constants, epsilon=polar_error(0.99, 2, q), **given).total for q in (2, 4, 6, 10)
        ]
        assert totals[0] > totals[1] > totals[2] > exact * (1 - 1e-12)
        assert totals[3] == pytest.approx(exact, rel=1e-12, abs=0.0)
        assert totals[0] > 1.05 * exact
    assert iterations_for(0.5, "svd", L=1.0, D=1.0, sigma=0.5, r=4, B=1) == iterations_for(
        0.5, "muon", chi=chi(0.0), L=1.0, D=1.0, sigma=0.5, r=4, B=1
    )


def test_the_library_and_an_independent_svd_take_the_same_path():
    rng = np.random.default_rng(5)
    objective, start = wells(3), rng.standard_normal((3, 5))
    ours, theirs = (run(objective, start, d, eta=0.1, beta=0.6, T=30) for d in (by_svd, svd_polar))
    assert np.allclose(ours.values, theirs.values, rtol=1e-9, atol=1e-12)
    assert np.allclose(ours.rho, 1.0, rtol=1e-9, atol=0)
