"""Lemma 3: the residual decays at least as fast as its (κ+1)-th power (Kim & Oh 2026, Lemma 3)."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import Polynomial as Series

from muonlab.polynomials import preset, taylor
from muonlab.polynomials.taylor_polynomial import central
from muonlab.theory import residual_after

UNIT = st.fractions(0, 1, max_denominator=10**6)
KAPPAS = (1, 2, 3, 5, 8, 13, 30)
NEAR_ZERO, NEAR_ONE = Fraction(1, 10**6), 1 - Fraction(1, 10**6)


def decays(p, u, exponent, factor=Fraction(1)):
    """Check ``φ(u) ≤ factor·u^exponent``."""
    return p.phi(u) <= factor * u**exponent


def decays_no_faster(p, u, exponent, factor):
    """Check ``φ(u) ≥ factor·u^exponent``."""
    return p.phi(u) >= factor * u**exponent


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 12), UNIT)
def test_phi_lies_between_its_two_powers_on_the_whole_interval(kappa, u):
    assert decays(taylor(kappa), u, kappa + 1)
    assert decays_no_faster(taylor(kappa), u, kappa + 1, 2 * central(kappa + 1))


def test_positive_coefficients_that_sum_to_one_prove_it_for_every_u():
    for kappa in KAPPAS:
        phi, p = taylor(kappa).exact_phi, Series([central(s) for s in range(kappa + 1)])
        exact = (
            1 - Series([Fraction(1), Fraction(-1)]) * p * p
        )  # φ = 1 - (1-u) p², multiplied out by numpy in rationals
        assert list(phi) == list(exact.coef)
        assert all(c == 0 for c in phi[: kappa + 1])
        assert all(c > 0 for c in phi[kappa + 1 :])
        assert sum(phi) == 1
        assert phi[kappa + 1] == 2 * central(kappa + 1)


def test_a_sharper_exponent_and_sharper_constants_are_rejected():
    for kappa in KAPPAS:
        p, lower = taylor(kappa), 2 * central(kappa + 1)
        assert not decays(p, NEAR_ZERO, kappa + 2, factor=Fraction(1000))
        assert decays(p, NEAR_ONE, kappa + 1)
        assert not decays(p, NEAR_ONE, kappa + 1, factor=Fraction(99, 100))
        assert decays_no_faster(p, NEAR_ZERO, kappa + 1, lower)
        assert not decays_no_faster(p, NEAR_ZERO, kappa + 1, Fraction(1001, 1000) * lower)


def test_a_polynomial_that_is_not_taylors_does_not_decay():
    assert not decays(preset("jordan").polynomial, Fraction(1, 100), 3)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.floats(0.0, 0.9999), st.integers(1, 5), st.integers(0, 4))
def test_each_step_of_the_library_decays_by_the_lemma(delta_0, kappa, q):
    before, after = residual_after(delta_0, kappa, q), residual_after(delta_0, kappa, q + 1)
    assert after <= before ** (kappa + 1) * (1 + 1e-12) + 1e-300


def test_the_multi_step_consequence_has_the_power_of_the_power():
    delta_0, kappa, q = 0.9, 2, 3
    exact, bound = residual_after(delta_0, kappa, q), residual_after(delta_0, kappa, q, bound=True)
    assert bound == pytest.approx(0.9**27, rel=1e-12, abs=0.0)
    assert exact <= bound
    assert not exact <= 0.9 ** (4**3)
    assert bound != pytest.approx(0.9 ** (3 * 3), rel=1e-3, abs=0.0)
