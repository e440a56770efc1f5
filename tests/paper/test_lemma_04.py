"""Lemma 4: Hölder's inequality between the nuclear and the operator norm (Kim & Oh 2026, Lemma 4)."""

from itertools import product

import numpy as np
import pytest
import torch

from muonlab import newton_schulz, polar
from muonlab.polynomials import taylor
from muonlab.theory import network_alignment
from tests.paper.simulation import frobenius, nuclear, operator, with_spectrum


def holder(A, B, factor=1.0, left=nuclear, right=operator):
    """Check ``|⟨A, B⟩| ≤ factor·‖A‖‖B‖`` in a pair of norms."""
    return abs(float(np.sum(A * B))) <= factor * left(A) * right(B) * (1 + 1e-12)


def test_the_inner_product_never_exceeds_the_product_of_dual_norms():
    for shape, seed in product([(1, 1), (4, 4), (3, 7), (7, 3)], range(20)):
        rng = np.random.default_rng([seed, *shape])
        A, B = rng.standard_normal(shape), rng.standard_normal(shape)
        assert holder(A, B)
        assert holder(A, -A)
        assert holder(A, polar(torch.from_numpy(A)).numpy())


def test_the_polar_factor_attains_it_so_no_smaller_constant_holds():
    A = np.random.default_rng(0).standard_normal((4, 6))
    P = polar(torch.from_numpy(A)).numpy()
    assert holder(A, P)
    assert not holder(A, P, factor=0.999)
    assert not holder(A, -P, factor=0.999)


def test_smaller_norms_on_either_side_are_rejected():
    assert not holder(np.eye(3), np.eye(3), left=operator)
    assert not holder(np.eye(3), np.eye(3), left=frobenius)
    assert holder(np.eye(3), np.eye(3), left=frobenius, right=frobenius)


def test_alignment_of_a_network_is_at_most_one():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        momenta = [with_spectrum(rng, rng.uniform(0, 1, 3), 3, 5), rng.standard_normal((4, 2))]
        steps = [newton_schulz(torch.from_numpy(M), taylor(2), steps=2).numpy() for M in momenta]
        found = network_alignment(
            [float(np.sum(M * X)) for M, X in zip(momenta, steps, strict=True)],
            [nuclear(M) for M in momenta],
            [operator(X) for X in steps],
        )
        assert 0.0 < found.alignment <= 1 + 1e-12
        assert found.descent <= found.gain * (1 + 1e-12)


def test_alignment_is_one_for_polar_factors_and_below_with_unequal_gains():
    rng = np.random.default_rng(5)
    momenta = [rng.standard_normal((3, 5)), rng.standard_normal((4, 2))]
    factors = [polar(torch.from_numpy(M)).numpy() for M in momenta]

    def alignment(gains):
        inner = [g * float(np.sum(M * P)) for g, M, P in zip(gains, momenta, factors, strict=True)]
        return network_alignment(inner, [nuclear(M) for M in momenta], gains).alignment

    assert alignment([1.0, 1.0]) == pytest.approx(1.0, rel=1e-12, abs=0.0)
    assert alignment([2.0, 2.0]) == pytest.approx(1.0, rel=1e-12, abs=0.0)
    assert alignment([1.0, 0.5]) < 0.9
