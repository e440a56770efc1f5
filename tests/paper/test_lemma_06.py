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
    orthogonal,
    quadratic,
    run,
    svd_polar,
    wells,
)


def problems(rng):
    return [bowl(3, 0.6), quadratic(rng.standard_normal((4, 3)), rng.standard_normal((3, 5))), wells(3)]


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
