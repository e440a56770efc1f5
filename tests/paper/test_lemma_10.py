"""Lemma 10: Newton-Schulz steps leave the range alone (Kim & Oh 2026, Lemma 10)."""

from itertools import product

import numpy as np

from muonlab.polynomials import Polynomial, preset, taylor
from tests.paper.simulation import by_newton_schulz, range_projector, singular, with_spectrum


def keeps_range(M, polynomial, steps, prescale="frobenius"):
    """Check ``range(X_j) = range(M)`` through the projectors onto both."""
    X = by_newton_schulz(polynomial, steps, prescale)(M)
    return np.allclose(range_projector(X), range_projector(M), rtol=0, atol=1e-9)


def test_taylor_steps_keep_the_range():
    for kappa, steps, (m, n, rank) in product([1, 2, 3], [0, 1, 3, 6], [(4, 4, 2), (3, 7, 3), (7, 3, 1), (6, 6, 5)]):
        rng = np.random.default_rng([kappa, steps, m, n, rank])
        M = with_spectrum(rng, rng.uniform(0.1, 1.0, rank), m, n)
        assert keeps_range(M, taylor(kappa), steps)
        X = by_newton_schulz(taylor(kappa), steps)(M)
        assert np.all(singular(X)[rank:] <= 1e-12)


def test_p_of_the_gram_matrix_is_positive_definite_on_the_range():
    for kappa in range(1, 8):
        lam = np.linspace(0.0, 1.0, 1001)
        assert np.min(taylor(kappa)(lam)) >= 1.0


def test_a_polynomial_with_a_zero_on_the_spectrum_loses_a_direction():
    M = with_spectrum(np.random.default_rng(1), [1.0, 0.5], 4, 5)
    vanishing = Polynomial(("0.5", "-2"))  # zero at λ = 1/4
    assert vanishing(0.25) == 0.0
    assert keeps_range(M, taylor(1), 1, "none")
    assert not keeps_range(M, vanishing, 1, "none")


def test_a_direction_outside_the_range_is_never_entered():
    M = with_spectrum(np.random.default_rng(2), [0.7], 3, 3)
    outside = np.eye(3) - range_projector(M)
    for name in ("quintic", "jordan", "polar_express"):
        X = by_newton_schulz(preset(name).schedule(5), prescale="frobenius")(M)
        assert np.allclose(outside @ X, 0.0, rtol=0, atol=1e-12)
