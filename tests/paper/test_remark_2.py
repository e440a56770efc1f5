"""Remark 2: everything happens on range(M), with no assumption of full rank (Kim & Oh 2026, Remark 2)."""

import numpy as np
import pytest
import torch

from muonlab import newton_schulz, polar
from muonlab.polynomials import preset, taylor
from tests.paper.simulation import operator, range_projector, svd_polar, with_spectrum

CASES = [(4, 4, 1), (4, 4, 3), (3, 7, 2), (7, 3, 2), (6, 5, 4)]


def vanishes_outside(M, X, projector=range_projector):
    """Check that X has nothing outside ``range(M)``."""
    return np.allclose((np.eye(len(M)) - projector(M)) @ X, 0.0, rtol=0, atol=1e-10)


def isometry_onto(M, P, projector=range_projector):
    """Check ``P Pᵀ = Π``."""
    return np.allclose(P @ P.T, projector(M), rtol=0, atol=1e-10)


def test_iterates_and_polar_factor_vanish_outside_the_range():
    for m, n, rank in CASES:
        rng = np.random.default_rng([m, n, rank])
        M = with_spectrum(rng, rng.uniform(0.2, 1.0, rank), m, n)
        for q in range(6):
            assert vanishes_outside(M, newton_schulz(torch.from_numpy(M), taylor(2), steps=q).numpy())
        P = polar(torch.from_numpy(M)).numpy()
        assert vanishes_outside(M, P)
        assert isometry_onto(M, P)
        assert np.allclose(P, svd_polar(M), rtol=0, atol=1e-10)


def test_rows_are_confined_like_columns():
    for m, n, rank in CASES:
        rng = np.random.default_rng([m, n, rank, 1])
        M = with_spectrum(rng, rng.uniform(0.2, 1.0, rank), m, n)
        X = newton_schulz(torch.from_numpy(M), preset("jordan").schedule(5)).numpy()
        assert vanishes_outside(M.T, X.T)
        assert isometry_onto(M.T, polar(torch.from_numpy(M)).numpy().T)


def test_the_identity_in_place_of_the_projector_is_rejected():
    M = with_spectrum(np.random.default_rng(1), [1.0, 0.5], 4, 5)
    P = polar(torch.from_numpy(M)).numpy()
    assert isometry_onto(M, P)
    assert not isometry_onto(M, P, projector=lambda A: np.eye(len(A)))


def test_the_full_orthogonal_factor_of_the_svd_is_rejected():
    """``U Vᵀ`` over all columns of the SVD, null directions included, is not the polar factor of the paper."""
    M = with_spectrum(np.random.default_rng(2), [1.0, 0.5], 4, 4)
    U, _, Vt = np.linalg.svd(M)
    assert not vanishes_outside(M, U @ Vt)
    assert not isometry_onto(M, U @ Vt)
    assert vanishes_outside(M, polar(torch.from_numpy(M)).numpy())


def test_a_direction_counts_as_in_the_range_only_above_the_tolerance():
    for level in [1e-9, 1e-6]:
        M = np.diag([1.0, level])
        kept = polar(torch.from_numpy(M), rank_tol=level / 2).numpy()
        dropped = polar(torch.from_numpy(M), rank_tol=level * 2).numpy()
        assert np.allclose(kept, np.eye(2), rtol=0, atol=1e-12)
        assert np.allclose(dropped, np.diag([1.0, 0.0]), rtol=0, atol=1e-12)


def test_the_iterates_approach_the_projector_and_not_the_identity():
    M = with_spectrum(np.random.default_rng(3), [1.0, 0.7], 3, 3)
    X = newton_schulz(torch.from_numpy(M), taylor(2), steps=10).numpy()
    assert operator(range_projector(M) - X @ X.T) < 1e-12
    assert operator(np.eye(3) - X @ X.T) == pytest.approx(1.0, rel=1e-12, abs=0.0)
