"""Definition 1: ε-stationarity in the nuclear norm, and the steps that reach it (Kim & Oh 2026, Definition 1)."""

import math
from itertools import product

import numpy as np
import pytest

from muonlab.polynomials import taylor
from muonlab.theory import iterations_for
from tests.paper.simulation import bowl, by_newton_schulz, nuclear, orthogonal, run, svd_polar, wells


def stationary(gradients, target, norm=nuclear):
    """Check ``(1/T) Σ ‖∇f(W_{t-1})‖ ≤ target`` in a given norm."""
    return float(np.mean([norm(G) for G in gradients])) <= target * (1 + 1e-9)


def exponent_of(what, name, method, factor=4.0):
    """Return the exponent with which an 𝒪-term grows in one of the constants."""
    constants = {"L": 2.0, "D": 3.0, "sigma": 1.5, "r": 4, "B": 2, "target": 50.0} | (
        {"chi": 1.0} if method == "muon" else {}
    )
    changed = constants | {what: type(constants[what])(constants[what] * factor)}
    return math.log(_order(method, changed)[name] / _order(method, constants)[name], factor)


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
        assert exponent_of(change, name, method) == pytest.approx(exponent, abs=1e-9)
