"""Definition 1: ε-stationarity in the nuclear norm, and the steps that reach it (Kim & Oh 2026, Definition 1)."""

import math
from itertools import product

import numpy as np

from muonlab.polynomials import taylor
from muonlab.theory import iterations_for, muon_bound
from tests.paper.simulation import bowl, by_newton_schulz, frobenius, nuclear, orthogonal, run, svd_polar, wells


def stationary(gradients, target, norm=nuclear):
    """Check ``(1/T) Σ ‖∇f(W_{t-1})‖ ≤ target`` in a given norm."""
    return float(np.mean([norm(G) for G in gradients])) <= target * (1 + 1e-9)


def order_scales(name, exponent, factor=4.0, method="muon", **change):
    """Check that an 𝒪-term is multiplied by ``factor**exponent`` when one constant is multiplied by ``factor``."""
    constants = {"L": 2.0, "D": 3.0, "sigma": 1.5, "r": 4, "B": 2, "target": 5.0}
    if method == "muon":
        constants["chi"] = 1.0
    (what,) = change
    before = _order(method, constants)[name]
    after = _order(method, constants | {what: type(constants[what])(constants[what] * factor)})[name]
    return math.isclose(after, before * factor**exponent, rel_tol=1e-12, abs_tol=0.0)


def _order(method, constants):
    rest = dict(constants)
    return iterations_for(rest.pop("target"), method, **rest).order


def test_the_announced_number_of_steps_reaches_the_target():
    for direction, (m, n, target) in product([svd_polar, by_newton_schulz(taylor(2), 12)], [(3, 3, 0.5), (2, 5, 0.3)]):
        problem, start = wells(min(m, n)), np.random.default_rng(1).standard_normal((m, n))
        needed = iterations_for(target, "svd", L=problem.L, D=problem.value(start), sigma=0.0, r=min(m, n), B=1)
        history = run(problem, start, direction, eta=needed.bound.eta, beta=needed.bound.beta, T=needed.total)
        assert history.stationarity <= target * (1 + 1e-6)


def test_one_step_fewer_is_not_announced_where_one_step_is_just_enough():
    r, scale = 4, 2.0
    problem, start = bowl(r), scale * orthogonal(np.random.default_rng(2), r)
    constants = {"L": problem.L, "D": problem.value(start), "sigma": 0.0, "r": r, "B": 1}
    first = nuclear(problem.gradient(start))
    assert stationary([problem.gradient(start)], first)
    assert not stationary([problem.gradient(start)], 0.999 * first)
    assert iterations_for(first * (1 + 1e-9), "svd", **constants).total == 1
    assert iterations_for(first * 0.999, "svd", **constants).total == 2


def test_the_announced_number_is_the_smallest_whose_best_bound_reaches_the_target():
    for constants, sigma in product(["paper", "sharp"], [0.0, 0.7]):
        given = {"L": 2.0, "D": 1.5, "sigma": sigma, "r": 3, "B": 2}
        target = 0.8
        needed = iterations_for(target, "muon", chi=1.25, constants=constants, **given)
        assert needed.bound.total <= target

        def best(T):
            keeps, etas = np.geomspace(1e-4, 1.0, 120), np.geomspace(1e-5, 10.0, 200)
            if sigma == 0.0:
                keeps = np.array([1.0])
            return min(
                muon_bound(T=T, epsilon=0.2, eta=eta, beta=1 - keep, constants=constants, **given).total
                for keep in keeps
                for eta in etas
            )

        assert best(needed.total - 1) > target
        assert best(math.ceil(1.05 * needed.total)) <= target


def test_stationary_in_the_nuclear_norm_is_stationary_in_the_frobenius_norm():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        gradients = [rng.standard_normal((3, 5)) for _ in range(4)]
        target = float(np.mean([nuclear(G) for G in gradients]))
        assert stationary(gradients, target)
        assert stationary(gradients, target, norm=frobenius)


def test_stationary_in_the_frobenius_norm_is_not_enough():
    gradients = [np.eye(9)]
    assert stationary(gradients, 3.0, norm=frobenius)
    assert not stationary(gradients, 3.0)
    assert not stationary(gradients, 8.9)


def test_iteration_complexity_scales_with_the_papers_exponent_and_no_other():
    for method, name, change, exponent in [
        ("muon", "deterministic", "target", -2),
        ("muon", "deterministic", "chi", 2),
        ("muon", "deterministic", "r", 0),
        ("muon", "start", "target", -2),
        ("muon", "start", "r", 2),
        ("muon", "start", "B", -1),
        ("muon", "stochastic", "target", -4),
        ("muon", "stochastic", "chi", 4),
        ("muon", "stochastic", "r", 1),
        ("muon", "stochastic", "sigma", 2),
        ("sgdm", "deterministic", "r", 1),
        ("sgdm", "deterministic", "target", -2),
        ("sgdm", "stochastic", "r", 2),
        ("sgdm", "stochastic", "target", -4),
        ("sgdm", "stochastic", "B", -1),
    ]:
        assert order_scales(name, exponent, method=method, **{change: True})
        assert not order_scales(name, exponent + 1, method=method, **{change: True})
        assert not order_scales(name, exponent - 1, method=method, **{change: True})


def test_muon_saves_the_rank_over_sgdm_at_equal_smoothness():
    given = {"L": 1.0, "D": 1.0, "sigma": 0.0, "B": 1}
    muon = [iterations_for(0.1, "svd", r=r, **given).total for r in (1, 16)]
    sgdm = [iterations_for(0.1, "sgdm", r=r, **given).total for r in (1, 16)]
    assert muon == [200, 200]
    assert sgdm == [200, 3200]
