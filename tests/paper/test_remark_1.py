"""Remark 1: after the prescale the initial residual is below one, but not uniformly (Kim & Oh 2026, Remark 1)."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from muonlab import newton_schulz
from muonlab.polynomials import taylor
from muonlab.theory import chi
from tests.paper.simulation import (
    by_newton_schulz,
    frobenius,
    nuclear,
    observed_residual,
    operator,
    with_spectrum,
)

SHAPES = [(4, 4), (3, 7), (7, 3)]


def starts_below_one(M, prescale, limit=1.0):
    """Check ``‖X_0‖_op ≤ 1`` and ``δ_0 < limit``."""
    X = by_newton_schulz(taylor(2), 0, prescale)(M)
    return operator(X) <= 1 + 1e-12 and observed_residual(M, X) < limit


def divides_by(M, prescale, scale):
    """Check ``X_0 = M/scale``."""
    return np.allclose(by_newton_schulz(taylor(2), 0, prescale)(M) * scale, M, rtol=1e-12, atol=0)


def test_every_prescale_starts_in_the_unit_ball_with_residual_below_one():
    for shape, prescale, size in product(
        SHAPES, ["paper", "frobenius", "schatten4", "schatten8", "spectral"], [1e-2, 1.0, 1e3]
    ):
        rng = np.random.default_rng(list(shape))
        for rank in (1, 2, 3):
            assert starts_below_one(with_spectrum(rng, size * rng.uniform(0.2, 1.0, rank), *shape), prescale)


def test_without_a_prescale_it_fails_outside_the_unit_ball():
    M = with_spectrum(np.random.default_rng(1), [1.5, 0.4], 3, 4)
    assert starts_below_one(M, "paper")
    assert not starts_below_one(M, "none")


def test_the_papers_prescale_divides_by_the_norm_only_when_it_exceeds_one():
    for size in [0.3, 1.0, 3.0, 1e4]:
        M = np.random.default_rng(2).standard_normal((3, 5))
        M *= size / frobenius(M)
        assert divides_by(M, "paper", max(1.0, size))
        assert divides_by(M, "frobenius", size)
        if size > 1:
            assert not divides_by(M, "paper", 1.0)
        if size < 1:
            assert not divides_by(M, "paper", size)


def test_the_residual_of_the_zero_matrix_is_zero():
    X = newton_schulz(torch.zeros(3, 4, dtype=torch.float64), taylor(2), steps=3, prescale="paper").numpy()
    assert observed_residual(np.zeros((3, 4)), X) == 0.0


def test_no_smaller_limit_serves_all_matrices():
    for limit in [0.9, 0.99, 0.9999]:
        thin = np.diag([1.0, math.sqrt((1 - limit) / 2)])
        assert starts_below_one(thin, "frobenius")
        assert not starts_below_one(thin, "frobenius", limit=limit)
        small = math.sqrt((1 - limit) / 2) * np.eye(2)
        assert not starts_below_one(small, "paper", limit=limit)
        assert starts_below_one(small, "frobenius", limit=limit)


def test_the_factor_is_not_a_function_of_the_number_of_steps_alone():
    factors = [chi(sigma_min=s, kappa=2, q=3) for s in (0.5, 1e-3, 1e-6)]
    assert factors[0] < 1.01
    assert factors[1] > 100
    assert factors[2] > 1e5


def test_near_a_stationary_point_the_papers_prescale_turns_the_step_linear():
    """With ``max{1, ‖M‖_F}`` a tiny M is multiplied by ``p(0)^q``: direction and alignment of the raw momentum."""
    for q in [1, 3]:
        M = 1e-7 * with_spectrum(np.random.default_rng(3), [1.0, 0.3, 0.1], 3, 5)
        X = by_newton_schulz(taylor(2), q, "paper")(M)
        assert np.allclose(X, 1.875**q * M, rtol=1e-9, atol=0)
        alignment = float(np.sum(M * X)) / (nuclear(M) * operator(X))
        assert alignment == pytest.approx((1 + 0.09 + 0.01) / 1.4, rel=1e-6, abs=0.0)
        assert not np.allclose(by_newton_schulz(taylor(2), q, "frobenius")(M), 1.875**q * M, rtol=0.5, atol=0)
