"""Definition 2: p_κ is the Taylor polynomial of λ^{-1/2} at λ = 1 (Kim & Oh 2026, Definition 2)."""

import math
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest

from muonlab.polynomials import preset, taylor
from muonlab.polynomials.base import derivative, horner
from muonlab.polynomials.taylor_polynomial import central

KAPPAS = (1, 2, 3, 5, 8, 13, 30)


def agrees_to_order(p, order):
    """Check ``p^{(s)}(1) = (d/dλ)^s λ^{-1/2} at 1 = (-1/2)(-3/2)…`` exactly for s = 0…order."""
    a, target = p.exact, Fraction(1)
    for s in range(order + 1):
        if horner(a, Fraction(1)) != target:
            return False
        a, target = derivative(a), target * Fraction(-(2 * s + 1), 2)
    return True


def has_coefficients(kappa, base=4):
    """Check that in powers of u = 1 - λ the coefficients are ``(2s)!/(base^s (s!)²)``."""
    return taylor(kappa).exact_u == tuple(
        Fraction(math.factorial(2 * s), base**s * math.factorial(s) ** 2) for s in range(kappa + 1)
    )


def test_all_derivatives_up_to_kappa_agree_at_one_and_the_next_does_not():
    for kappa in KAPPAS:
        assert taylor(kappa).kappa == kappa
        assert agrees_to_order(taylor(kappa), kappa)
        assert not agrees_to_order(taylor(kappa), kappa + 1)


def test_jordans_polynomial_does_not_even_agree_in_value():
    assert not agrees_to_order(preset("jordan").polynomial, 0)


def test_coefficients_in_u_are_the_central_binomials_over_powers_of_four():
    for kappa in KAPPAS:
        assert has_coefficients(kappa)
        assert taylor(kappa).exact_u == tuple(central(s) for s in range(kappa + 1))


def test_another_power_in_the_coefficients_is_rejected():
    for base in [2, 3, 5]:
        assert not any(has_coefficients(kappa, base=base) for kappa in KAPPAS)


def test_cubic_and_quintic_have_the_printed_coefficients():
    assert taylor(1).exact == (Fraction(3, 2), Fraction(-1, 2))
    assert taylor(2).exact == (Fraction(15, 8), Fraction(-5, 4), Fraction(3, 8))


def test_float_evaluation_keeps_its_digits_on_the_unit_interval():
    for kappa in [1, 2, 5, 12, 30]:
        p = taylor(kappa)
        with mpmath.workdps(60):
            for lam in np.linspace(0.0, 1.0, 41):
                exact = mpmath.fsum(
                    mpmath.binomial(2 * s, s) / mpmath.mpf(4) ** s * (1 - mpmath.mpf(float(lam))) ** s
                    for s in range(kappa + 1)
                )
                assert p(float(lam)) == pytest.approx(float(exact), rel=4e-15, abs=0.0)


def test_the_polynomials_approach_the_inverse_root():
    lam = Fraction(1, 4)
    gaps = [2 - taylor(kappa)(lam) for kappa in KAPPAS]
    assert all(0 < later < earlier for earlier, later in pairwise(gaps))
    assert gaps[-1] < Fraction(1, 10_000)
