"""Lemma 7: the gradient-gap inequality in the Frobenius norm (Kim & Oh 2026, Lemma 7)."""

import math
from itertools import product

import numpy as np
import pytest

from muonlab.theory import muon_bound
from tests.paper.simulation import bowl, frobenius, nuclear, quadratic, wells, with_spectrum


def gap(objective, W, factor=2.0, power=2):
    """Check ``‖∇f(W)‖_F^power ≤ factor·L(f(W) - f*)`` with f* = 0."""
    return frobenius(objective.gradient(W)) ** power <= factor * objective.L * objective.value(W) * (1 + 1e-9)


def test_it_holds_on_random_points_of_every_problem():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        W = rng.standard_normal((3, 4)) * rng.choice([0.01, 1.0, 10.0])
        for objective in (bowl(3, 2.5), quadratic(rng.standard_normal((2, 3)), rng.standard_normal((3, 4))), wells(3)):
            assert gap(objective, W)


def test_a_smaller_constant_is_rejected_by_curvature_of_rank_one():
    a = np.array([[1.0, -2.0, 0.5]])
    objective = quadratic(a, np.zeros((3, 2)))
    W = np.outer(a[0], [0.3, -1.0])
    assert gap(objective, W)
    assert not gap(objective, W, factor=1.99)
    assert not gap(objective, W, factor=1.0)


def test_the_inequality_without_the_square_is_rejected():
    """As the printed proof reads: ``‖∇f‖_F ≤ 2L(f - f*)`` fails near a minimum."""
    W = 1e-3 * np.eye(3)
    assert gap(bowl(3), W)
    assert not gap(bowl(3), W, power=1)


def test_the_papers_start_term_covers_the_start_up_error_of_the_momentum():
    """Theorem 1 spends it on ``(2/T) Σ_t β^t ‖∇f(W_0)‖_*``, at the price of √r between the norms."""
    for beta, seed in product([0.2, 0.5, 0.9], range(5)):
        rng = np.random.default_rng(seed)
        objective, W, T, r = wells(3), rng.standard_normal((3, 4)), 50, 3
        D = objective.value(W)
        terms = muon_bound(
            L=objective.L, D=D, sigma=0.0, r=r, B=1, T=T, eta=0.1, beta=beta, constants="paper", epsilon=0.25
        ).terms
        spent = 2 / T * sum(beta**t for t in range(1, T + 1)) * nuclear(objective.gradient(W)) / 0.75
        assert spent <= terms["start"]
        expected = 2 * beta * math.sqrt(2 * r * objective.L * D) / (T * (1 - beta)) / 0.75
        assert terms["start"] == pytest.approx(expected, rel=1e-12, abs=0.0)


def test_the_frobenius_lemma_alone_does_not_bound_the_nuclear_norm_without_the_root_of_the_rank():
    """A flat spectrum: ``‖∇f‖_*² = r‖∇f‖_F²``, so the step from one norm to the other needs √r."""
    W = with_spectrum(np.random.default_rng(4), np.ones(3), 3, 3)
    G = bowl(3).gradient(W)
    assert nuclear(G) == pytest.approx(math.sqrt(3) * frobenius(G), rel=1e-9, abs=0.0)
    assert nuclear(G) > 1.7 * frobenius(G)
