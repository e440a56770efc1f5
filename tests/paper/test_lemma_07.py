"""Lemma 7: the gradient-gap inequality in the Frobenius norm (Kim & Oh 2026, Lemma 7)."""

import math
from itertools import product

import numpy as np
import pytest

from muonlab.theory import muon_bound
from tests.paper.simulation import nuclear, quadratic, wells


def test_curvature_of_rank_one_attains_the_start_term_so_a_smaller_constant_is_rejected():
    a, T = np.array([[1.0, -2.0, 0.5]]), 5000
    objective, W = quadratic(a, np.zeros((3, 2))), np.outer(a[0], [0.3, -1.0])
    given = {"L": objective.L, "D": objective.value(W), "sigma": 0.0, "r": 1, "B": 1, "T": T, "eta": 0.1}
    for beta in (0.2, 0.9):
        term = muon_bound(beta=beta, constants="paper", **given).terms["start"]
        spent = 2 / T * sum(beta**t for t in range(1, T + 1)) * nuclear(objective.gradient(W))
        assert 0.999 * term < spent <= term * (1 + 1e-9)


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
