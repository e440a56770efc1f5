"""Corollary 2: the residual maps of the cubic and the quintic iteration (Kim & Oh 2026, Corollary 2)."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muonlab.polynomials import taylor
from muonlab.theory import residual_after

UNIT = st.fractions(0, 1, max_denominator=10**6)
PRINTED = {1: (3, 1), 2: (40, 15, 9)}


def maps_to(kappa, u, numerators, denominator):
    """Check ``φ(u) = u^{κ+1} (a_0 + a_1 u + …)/denominator`` exactly."""
    return taylor(kappa).phi(u) == u ** (kappa + 1) * sum(a * u**k for k, a in enumerate(numerators)) / denominator


def contracts(kappa, u, exponent):
    """Check ``φ(u) ≤ u^exponent``."""
    return taylor(kappa).phi(u) <= u**exponent


@settings(derandomize=True, deadline=None, max_examples=100)
@given(UNIT)
def test_the_printed_maps_are_exact_and_contract(u):
    assert maps_to(1, u, PRINTED[1], 4)
    assert maps_to(2, u, PRINTED[2], 64)
    assert contracts(1, u, 2)
    assert contracts(2, u, 3)


def test_other_coefficients_are_rejected():
    for kappa, numerators, denominator in [
        (1, (4, 1), 4),
        (1, (3, 1), 5),
        (1, (1, 3), 4),
        (2, (40, 15, 8), 64),
        (2, (40, 16, 9), 64),
        (2, (40, 15, 9), 65),
    ]:
        assert not maps_to(kappa, Fraction(1, 2), numerators, denominator)


def test_a_sharper_power_is_rejected():
    assert not contracts(1, Fraction(1, 2), 3)
    assert not contracts(2, Fraction(1, 2), 4)


def test_the_cubic_map_is_not_the_quintic_one():
    assert not maps_to(1, Fraction(1, 2), PRINTED[2], 64)
    assert not contracts(1, Fraction(1, 10), 3)


@pytest.mark.parametrize("kappa", [1, 2])
@settings(derandomize=True, deadline=None, max_examples=60)
@given(delta=st.floats(0.0, 0.99), q=st.integers(0, 4))
def test_the_library_follows_the_printed_maps(kappa, delta, q):
    exact = Fraction(delta)
    for _ in range(q):
        top = sum(a * exact**k for k, a in enumerate(PRINTED[kappa]))
        exact = Fraction(round(exact ** (kappa + 1) * top / sum(PRINTED[kappa]) * 2**1200), 2**1200)
    assert residual_after(delta, kappa, q) == pytest.approx(float(exact), rel=1e-12 * 4**q, abs=1e-300)


def test_the_derivative_of_the_quintic_tau_has_the_corrected_second_factor():
    """``τ' = p·(15/8)(1-λ)²``; the printed second factor ``(15 + 6λ + 3λ²)/8`` is another polynomial."""
    p = taylor(2)
    for lam in (Fraction(0), Fraction(1, 3), Fraction(1, 2), Fraction(1)):
        assert p.dtau(lam) == p(lam) * Fraction(15, 8) * (1 - lam) ** 2
    assert p.dtau(Fraction(1, 2)) != p(Fraction(1, 2)) * (15 + 6 * Fraction(1, 2) + 3 * Fraction(1, 4)) / 8
    cubic = taylor(1)
    for lam in (Fraction(0), Fraction(1, 3), Fraction(1)):
        assert cubic.dtau(lam) == Fraction(3, 4) * (lam - 1) * (lam - 3)
