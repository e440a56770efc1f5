"""Lemma 3: the residual decays at least as fast as its (κ+1)-th power (Kim & Oh 2026, Lemma 3)."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muonlab.polynomials import preset, taylor
from muonlab.polynomials.taylor_polynomial import central, phi_closed_form
from muonlab.theory import residual_after

UNIT = st.fractions(0, 1, max_denominator=10**6)
NEAR_ZERO, NEAR_ONE = Fraction(1, 10**6), 1 - Fraction(1, 10**6)


def decays(p, u, exponent, factor=Fraction(1)):
    """Check ``φ(u) ≤ factor·u^exponent``."""
    return p.phi(u) <= factor * u**exponent


def decays_no_faster(p, u, exponent, factor):
    """Check ``φ(u) ≥ factor·u^exponent``."""
    return p.phi(u) >= factor * u**exponent


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(1, 12), UNIT)
def test_phi_lies_between_its_two_powers_on_the_whole_interval(kappa, u):
    assert decays(taylor(kappa), u, kappa + 1)
    assert decays_no_faster(taylor(kappa), u, kappa + 1, 2 * central(kappa + 1))


def test_positive_coefficients_that_sum_to_one_prove_it_for_every_u():
    for kappa in range(1, 31):
        phi = taylor(kappa).exact_phi
        assert phi == phi_closed_form(kappa)
        assert all(c == 0 for c in phi[: kappa + 1])
        assert all(c > 0 for c in phi[kappa + 1 :])
        assert sum(phi) == 1
        assert phi[kappa + 1] == 2 * central(kappa + 1)


def test_a_sharper_exponent_is_rejected():
    for kappa in range(1, 31):
        assert not decays(taylor(kappa), NEAR_ZERO, kappa + 2)
        assert not decays(taylor(kappa), NEAR_ZERO, kappa + 2, factor=Fraction(1000))


def test_a_smaller_constant_is_rejected_near_one():
    for kappa in range(1, 31):
        assert decays(taylor(kappa), NEAR_ONE, kappa + 1)
        assert not decays(taylor(kappa), NEAR_ONE, kappa + 1, factor=Fraction(99, 100))


def test_a_larger_lower_constant_is_rejected_near_zero():
    for kappa in range(1, 31):
        assert decays_no_faster(taylor(kappa), NEAR_ZERO, kappa + 1, 2 * central(kappa + 1))
        assert not decays_no_faster(taylor(kappa), NEAR_ZERO, kappa + 1, Fraction(1001, 1000) * 2 * central(kappa + 1))


def test_a_polynomial_that_is_not_taylors_does_not_decay():
    assert not decays(preset("jordan").polynomial, Fraction(1, 100), 3)


@settings(derandomize=True, deadline=None, max_examples=150)
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
