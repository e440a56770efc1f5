"""Gradient gap, sharper: ‖∇f(W)‖_*² ≤ 2L(f(W) - f*), with no √r to come back (strengthens Kim & Oh 2026, Lemma 7)."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from muonlab import polar
from muonlab.theory import muon_bound
from tests.paper.simulation import bowl, nuclear, orthogonal, quadratic, wells


def problems(rng):
    return [bowl(3, 2.5), quadratic(rng.standard_normal((2, 3)), rng.standard_normal((3, 5))), wells(3)]


def test_the_step_of_its_proof_gains_half_the_squared_norm_over_l_and_no_more():
    """Along ``-(‖∇f‖_*/L)·Polar(∇f)`` the value falls by at least ``‖∇f‖_*²/(2L)``; a flat spectrum attains it."""

    def gain(objective, W):
        G = objective.gradient(W)
        moved = W - nuclear(G) / objective.L * polar(torch.from_numpy(G)).numpy()
        return (objective.value(W) - objective.value(moved)) / (nuclear(G) ** 2 / (2 * objective.L))

    for which, seed in product(range(3), range(10)):
        rng = np.random.default_rng(seed)
        assert gain(problems(rng)[which], rng.standard_normal((3, 5))) >= 1 - 1e-9
    for r in (1, 4, 9):
        assert gain(bowl(r), 0.3 * orthogonal(np.random.default_rng(r), r)) == pytest.approx(1.0, rel=1e-9, abs=0.0)


def test_it_takes_the_root_of_the_rank_out_of_the_start_up_term():
    for r, beta in product([1, 4, 25], [0.3, 0.9]):
        given = {"L": 1.3, "D": 0.7, "sigma": 0.0, "r": r, "B": 1, "T": 80, "eta": 0.1, "beta": beta}
        paper, sharp = (muon_bound(constants=c, **given).terms["start"] for c in ("paper", "sharp"))
        assert paper == pytest.approx(math.sqrt(r) * sharp, rel=1e-12, abs=0.0)
        expected = 2 * beta * math.sqrt(2 * 1.3 * 0.7) / (80 * (1 - beta))
        assert sharp == pytest.approx(expected, rel=1e-12, abs=0.0)


def test_the_sharp_start_up_term_is_just_enough_for_a_flat_spectrum():
    for beta in [0.3, 0.9]:
        r, T = 4, 5000
        objective, W = bowl(r), orthogonal(np.random.default_rng(4), r)
        terms = muon_bound(
            L=objective.L, D=objective.value(W), sigma=0.0, r=r, B=1, T=T, eta=0.1, beta=beta, constants="sharp"
        ).terms
        spent = 2 / T * sum(beta**t for t in range(1, T + 1)) * nuclear(objective.gradient(W))
        assert spent == pytest.approx(terms["start"], rel=1e-9, abs=0.0)
        assert spent > 0.99 * terms["start"]
