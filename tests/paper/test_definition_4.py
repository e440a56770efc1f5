"""Definition 4: Schatten norms, and the prescales that are built on them (Kim & Oh 2026, Definition 4)."""

from itertools import product

import numpy as np
import pytest
import torch

from muonlab import newton_schulz, polar
from tests.paper.simulation import frobenius, nuclear, operator, singular, with_spectrum

PRESCALES = {"frobenius": 2, "schatten4": 4, "schatten8": 8}


def schatten(M, p):
    """``(Σ σ_i^p)^{1/p}``."""
    s = singular(M)
    return float(s[0] * np.sum((s / s[0]) ** p) ** (1 / p))


def scales_by_schatten(M, prescale, p):
    """Check that the scaled matrix is ``M/‖M‖_{S_p}``."""
    X = newton_schulz(torch.from_numpy(M), "quintic", steps=0, prescale=prescale).numpy()
    return np.allclose(X * schatten(M, p), M, rtol=1e-10, atol=1e-12 * operator(M))


def test_a_prescale_divides_by_its_schatten_norm():
    for (prescale, p), shape, scale in product(PRESCALES.items(), [(4, 4), (3, 9), (9, 3)], [1e-3, 1.0, 1e3]):
        M = scale * np.random.default_rng([p, *shape]).standard_normal(shape)
        assert scales_by_schatten(M, prescale, p)


def test_another_exponent_is_rejected():
    for prescale, p in PRESCALES.items():
        M = np.random.default_rng(p).standard_normal((4, 6))
        for wrong in {1, 2, 3, 4, 8, 16} - {p}:
            assert not scales_by_schatten(M, prescale, wrong)


def test_nuclear_frobenius_and_operator_norms_are_the_cases_one_two_and_infinity():
    for seed in range(4):
        M = np.random.default_rng(seed).standard_normal((4, 7))
        assert schatten(M, 1) == pytest.approx(nuclear(M), rel=1e-12, abs=0.0)
        assert schatten(M, 2) == pytest.approx(frobenius(M), rel=1e-12, abs=0.0)
        assert schatten(M, 4000) == pytest.approx(operator(M), rel=1e-3, abs=0.0)
        assert operator(newton_schulz(torch.from_numpy(M), "quintic", steps=0, prescale="spectral").numpy()) == (
            pytest.approx(1.0, rel=1e-12, abs=0.0)
        )


def test_nuclear_and_operator_norm_are_dual_through_the_polar_factor():
    M = np.random.default_rng(6).standard_normal((4, 5))
    Y = polar(torch.from_numpy(M)).numpy()
    assert float(np.sum(M * Y)) == pytest.approx(schatten(M, 1) * operator(Y), rel=1e-12, abs=0.0)
    assert float(np.sum(M * Y)) < 0.999 * schatten(M, 1) * schatten(Y, 4)


def test_a_higher_exponent_scales_less_and_stays_in_the_unit_ball():
    M = with_spectrum(np.random.default_rng(8), np.linspace(0.1, 1.0, 8), 8, 8)
    norms = [
        operator(newton_schulz(torch.from_numpy(M), "quintic", steps=0, prescale=name).numpy()) for name in PRESCALES
    ]
    assert norms[0] < norms[1] < norms[2] <= 1.0
