"""Lemma 9: Newton-Schulz steps leave the polar factor alone (Kim & Oh 2026, Lemma 9)."""

from itertools import product

import numpy as np
import torch

from muonlab import newton_schulz, polar
from muonlab.polynomials import Polynomial, preset, taylor
from tests.paper.simulation import svd_polar, with_spectrum


def keeps_polar(M, polynomial, steps, prescale="frobenius", sign=1.0):
    """Check ``Polar(X_j) = sign·Polar(M)``."""
    X = newton_schulz(torch.from_numpy(M), polynomial, steps=steps, prescale=prescale)
    return np.allclose(polar(X).numpy(), sign * svd_polar(M), rtol=0, atol=1e-9)


def test_taylor_steps_keep_the_polar_factor():
    for kappa, steps, shape, prescale in product(
        [1, 2, 3], [0, 1, 4], [(4, 4), (3, 7), (7, 3)], ["frobenius", "paper", "schatten8", "spectral"]
    ):
        rng = np.random.default_rng([kappa, steps, *shape])
        M = with_spectrum(rng, rng.uniform(0.2, 2.0, 3), *shape)
        assert keeps_polar(M, taylor(kappa), steps, prescale)


def test_taylor_steps_keep_the_polar_factor_without_full_rank():
    for rank in [1, 2]:
        M = with_spectrum(np.random.default_rng(rank), np.linspace(1.0, 0.4, rank), 4, 5)
        assert keeps_polar(M, taylor(2), 3)


def test_a_scale_below_the_operator_norm_turns_the_polar_factor_round():
    """The paper asks for α > 0 only; κ = 1, M = 2 and α = 1 give ``X_1 = 2 p_1(4) = -1``."""
    M = torch.tensor([[2.0]], dtype=torch.float64)
    assert float(newton_schulz(M, taylor(1), steps=1, prescale="none")) == -1.0
    assert float(newton_schulz(M, taylor(1), steps=1, prescale="spectral")) == 1.0


def test_any_positive_polynomial_keeps_it_too():
    for name in ["jordan", "polar_express"]:
        M = np.random.default_rng(3).standard_normal((4, 6))
        X = newton_schulz(torch.from_numpy(M), preset(name).schedule(3))
        assert np.allclose(polar(X).numpy(), svd_polar(M), rtol=0, atol=1e-9)


def test_a_negative_polynomial_turns_the_polar_factor_round():
    M = np.random.default_rng(4).standard_normal((3, 5))
    negative = Polynomial(tuple(-c for c in taylor(2).exact))
    assert not keeps_polar(M, negative, 1)
    assert keeps_polar(M, negative, 1, sign=-1.0)
    assert keeps_polar(M, negative, 2)


def test_a_polynomial_that_changes_sign_loses_the_polar_factor_altogether():
    M = with_spectrum(np.random.default_rng(5), [0.9, 0.3], 3, 4)
    crossing = Polynomial(("1", "-2"))
    assert not keeps_polar(M, crossing, 1, "none")
    assert not keeps_polar(M, crossing, 1, "none", sign=-1.0)
