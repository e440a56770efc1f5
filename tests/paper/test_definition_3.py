"""Definition 3: orthogonality residual and polar error, on the range of M (Kim & Oh 2026, Definition 3)."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from muonlab import newton_schulz, polar
from muonlab.polynomials import Polynomial, Schedule, preset, taylor
from muonlab.theory import polar_error, residual_after, schedule_error
from tests.paper.simulation import (
    by_newton_schulz,
    observed_error,
    observed_residual,
    operator,
    range_projector,
    singular,
    with_spectrum,
)

SHAPES = [(4, 4), (3, 7), (7, 3)]


def residual_is(M, X, expected, projector=range_projector):
    """Check ``‖Π - X Xᵀ‖_op = expected`` for a choice of Π."""
    return math.isclose(operator(projector(M) - X @ X.T), expected, rel_tol=1e-9, abs_tol=1e-12)


def error_is(M, X, expected):
    """Check ``‖X - Polar(M)‖_op = expected``."""
    return math.isclose(observed_error(M, X), expected, rel_tol=1e-9, abs_tol=1e-12)


def identity(M):
    return np.eye(len(M))


def test_library_predicts_residual_and_error_of_a_matrix():
    for (m, n), kappa, q in product(SHAPES, [1, 2, 3], [0, 1, 3]):
        rng = np.random.default_rng([m, n, kappa, q])
        M = with_spectrum(rng, [1.0, *rng.uniform(0.01, 0.1, 2)], m, n)
        X = by_newton_schulz(taylor(kappa), q, "frobenius")(M)
        least = singular(M)[2] / np.linalg.norm(M)
        assert residual_is(M, X, residual_after(sigma_min=least, kappa=kappa, q=q))
        assert error_is(M, X, polar_error(sigma_min=least, kappa=kappa, q=q))
        assert not error_is(M, X, polar_error(sigma_min=least, kappa=kappa, q=q + 1))


def test_the_identity_in_place_of_the_projector_is_rejected_without_full_row_rank():
    for m, n in [(5, 5), (5, 8), (7, 3)]:
        rng = np.random.default_rng(3)
        M = with_spectrum(rng, [1.0, 0.6], m, n)
        X = by_newton_schulz(taylor(2), 8, "frobenius")(M)
        expected = residual_after(sigma_min=0.6 / math.hypot(1.0, 0.6), kappa=2, q=8)
        assert expected < 1e-12
        assert residual_is(M, X, expected)
        assert not residual_is(M, X, expected, projector=identity)
        assert residual_is(M, X, 1.0, projector=identity)


def test_both_vanish_for_the_zero_matrix():
    Z = torch.zeros(3, 5, dtype=torch.float64)
    assert not newton_schulz(Z, taylor(2), steps=3).any()
    assert not polar(Z).any()
    X = newton_schulz(Z, taylor(2), steps=3).numpy()
    assert observed_residual(Z.numpy(), X) == 0.0
    assert observed_error(Z.numpy(), X) == 0.0


def test_the_error_of_a_schedule_cannot_be_read_off_the_residual():
    flip = Schedule((Polynomial(("-1.5", "0.5")),))
    X = np.array([[flip(1.0)]])
    assert observed_residual(np.eye(1), X) == 0.0
    assert error_is(np.eye(1), X, 2.0)
    assert not error_is(np.eye(1), X, 1 - math.sqrt(1 - observed_residual(np.eye(1), X)))
    assert schedule_error(flip, 1.0).epsilon == 2.0


def test_schedule_error_bounds_every_matrix_of_its_interval_and_is_attained():
    for name, ell in product(["cubic", "quintic", "jordan", "polar_express"], [0.003, 0.05, 0.4]):
        schedule = preset(name).schedule(4)
        epsilon, s_max = schedule_error(schedule, ell)
        grid = schedule(np.linspace(ell, 1.0, 200_001))
        reached = float(np.max(np.abs(grid - 1)))
        assert reached <= epsilon + 1e-15
        assert reached >= epsilon * (1 - 1e-6) - 1e-15
        assert np.max(np.abs(grid)) == pytest.approx(s_max, rel=1e-6, abs=0.0)
        rng = np.random.default_rng(7)
        M = with_spectrum(rng, [1.0, *rng.uniform(ell, 1.0, 3)], 4, 6)
        X = by_newton_schulz(schedule, prescale="none")(M)
        assert observed_error(M, X) <= epsilon + 1e-12
