"""Proposition 2: the norm facts (i)-(v), and the polar factor among them (Kim & Oh 2026, Proposition 2)."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from muonlab import polar
from tests.paper.simulation import frobenius, nuclear, operator, singular, svd_polar, with_spectrum

SHAPES = [(1, 1), (4, 4), (3, 7), (7, 3), (1, 5)]


def factor(M):
    return polar(torch.from_numpy(M)).numpy()


def frobenius_is(M, power=2):
    """(i): ``‖X‖_F^power = tr(XᵀX) = Σ σ_i²``."""
    value = frobenius(M) ** power
    traces = (float(np.trace(M.T @ M)), float(np.sum(singular(M) ** 2)), float(np.sum(M * M)))
    return all(math.isclose(value, other, rel_tol=1e-10, abs_tol=0.0) for other in traces)


def pairs_to(M, norm):
    """(ii): ``⟨X, Polar(X)⟩ = ‖X‖`` in a given norm."""
    return math.isclose(float(np.sum(M * factor(M))), norm(M), rel_tol=1e-10, abs_tol=0.0)


def nuclear_at_most(M, exponent=0.5):
    """(iii): ``‖X‖_* ≤ r^exponent ‖X‖_F``."""
    return nuclear(M) <= min(M.shape) ** exponent * frobenius(M) * (1 + 1e-12)


def ordered(M, *norms):
    """(iv): the norms do not decrease in the order given."""
    values = [norm(M) for norm in norms]
    return all(a <= b * (1 + 1e-12) for a, b in pairwise(values))


def invariant(M, c):
    """(v): ``Polar(cX) = Polar(X)``."""
    return np.allclose(factor(c * M), factor(M), rtol=0, atol=1e-10)


def test_all_five_facts_hold_on_random_matrices():
    for shape, seed in product(SHAPES, range(5)):
        M = np.random.default_rng([seed, *shape]).standard_normal(shape)
        assert frobenius_is(M)
        assert pairs_to(M, nuclear)
        assert nuclear_at_most(M)
        assert ordered(M, operator, frobenius, nuclear)
        assert all(invariant(M, c) for c in (1e-6, 0.3, 7.0, 1e5))


def test_all_five_facts_hold_without_full_rank():
    for rank in [1, 2]:
        M = with_spectrum(np.random.default_rng(rank), np.linspace(1.0, 0.5, rank), 4, 6)
        assert frobenius_is(M)
        assert pairs_to(M, nuclear)
        assert nuclear_at_most(M)
        assert ordered(M, operator, frobenius, nuclear)
        assert invariant(M, 3.0)
        assert np.allclose(factor(M), svd_polar(M), rtol=0, atol=1e-12)


def test_the_norm_without_its_square_is_rejected():
    assert not frobenius_is(np.diag([2.0, 1.0]), power=1)


def test_pairing_with_the_polar_factor_gives_neither_frobenius_nor_operator_norm():
    M = np.diag([2.0, 1.0])
    assert not pairs_to(M, frobenius)
    assert not pairs_to(M, operator)


def test_a_smaller_power_of_the_rank_is_rejected_by_the_identity():
    assert nuclear_at_most(np.eye(16))
    assert not nuclear_at_most(np.eye(16), exponent=0.49)
    assert not nuclear_at_most(np.eye(16), exponent=0.0)


def test_the_opposite_order_of_the_norms_is_rejected():
    M = np.diag([2.0, 1.0])
    assert not ordered(M, frobenius, operator)
    assert not ordered(M, nuclear, frobenius)


def test_a_negative_factor_turns_the_polar_factor_round():
    M = np.random.default_rng(9).standard_normal((3, 4))
    assert not invariant(M, -1.0)
    assert np.allclose(factor(-M), -factor(M), rtol=0, atol=1e-12)


def test_the_polar_factor_is_a_partial_isometry_that_an_independent_svd_confirms():
    for shape in SHAPES:
        M = np.random.default_rng([20, *shape]).standard_normal(shape)
        assert operator(factor(M)) == pytest.approx(1.0, rel=1e-12, abs=0.0)
        assert np.allclose(factor(M), svd_polar(M), rtol=0, atol=1e-12)
