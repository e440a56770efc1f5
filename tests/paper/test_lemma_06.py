"""Lemma 6: the descent lemma in the operator norm (Kim & Oh 2026, Lemma 6)."""

from itertools import product

import numpy as np
import pytest

from muonlab.polynomials import taylor
from muonlab.theory import run_bound
from tests.paper.simulation import (
    bowl,
    by_newton_schulz,
    nuclear,
    operator,
    orthogonal,
    quadratic,
    run,
    svd_polar,
    wells,
)


def descends(objective, X, Y, factor=0.5, sign=1.0, power=2):
    """Check ``f(Y) ≤ f(X) + sign·⟨∇f(X), Y-X⟩ + factor·L‖Y-X‖_op^power``."""
    linear = sign * float(np.sum(objective.gradient(X) * (Y - X)))
    bound = objective.value(X) + linear + factor * objective.L * operator(Y - X) ** power
    return objective.value(Y) <= bound + 1e-9 * (1 + abs(bound))


def problems(rng):
    return [bowl(3, 0.6), quadratic(rng.standard_normal((4, 3)), rng.standard_normal((3, 5))), wells(3)]


def test_it_holds_between_random_points():
    for which, seed in product(range(3), range(40)):
        rng = np.random.default_rng(seed)
        objective = problems(rng)[which]
        X = rng.standard_normal((3, 5)) * rng.choice([0.1, 1.0, 4.0])
        Y = X + rng.standard_normal((3, 5)) * rng.choice([0.01, 0.5, 3.0])
        assert descends(objective, X, Y)


def test_a_smaller_constant_another_power_or_sign_is_rejected():
    objective, Q = bowl(3), orthogonal(np.random.default_rng(1), 3)
    assert descends(objective, Q, 3 * Q)
    assert not descends(objective, Q, 3 * Q, factor=0.49)
    assert not descends(objective, Q, 3 * Q, factor=0.25)
    assert not descends(objective, Q, 3 * Q, sign=-1.0)
    assert not descends(objective, Q, 6 * Q, power=1)


def test_one_step_of_the_run_bound_is_the_descent_lemma():
    for which, eta in product(range(3), [0.01, 0.2, 1.5]):
        rng = np.random.default_rng(2)
        objective, start = problems(rng)[which], rng.standard_normal((3, 5))
        for direction in (svd_polar, by_newton_schulz(taylor(2), 3)):
            one = run(objective, start, direction, eta=eta, beta=0.0, T=1)
            drop = max(one.decrease(), 0.0)
            found = run_bound(one.rho, one.gain, L=objective.L, D=drop, sigma=0.0, r=3, B=1, eta=eta, beta=0.0)
            assert nuclear(objective.gradient(start)) <= found.total * (1 + 1e-9)


def test_the_run_bound_of_one_step_is_attained_so_half_its_curvature_fails():
    objective, Q, eta = bowl(4), orthogonal(np.random.default_rng(3), 4), 0.7
    one = run(objective, Q, svd_polar, eta=eta, beta=0.0, T=1)
    found = run_bound(one.rho, one.gain, L=objective.L, D=one.decrease(), sigma=0.0, r=4, B=1, eta=eta, beta=0.0)
    assert one.gradients[0] == pytest.approx(found.total, rel=1e-9, abs=0.0)
    assert one.gradients[0] > found.total - 0.01 * found.terms["curvature"]
    assert one.gradients[0] > found.total - 0.01 * found.terms["descent"]
