"""The Taylor polynomials of the inverse root: closed forms in exact rationals, and the shape of their steps."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muonlab.polynomials import Schedule, taylor
from muonlab.polynomials.base import derivative, reflect
from muonlab.polynomials.taylor_polynomial import phi_closed_form

DEGREES = (1, 2, 3, 5, 8, 13, 30)
KAPPA = st.integers(1, 12)
UNIT = st.fractions(0, 1, max_denominator=10**6)


def c(s):
    """Central binomial coefficient over 4^s, written with factorials."""
    return Fraction(math.factorial(2 * s), 4**s * math.factorial(s) ** 2)


def compare_after(kappa, q, x):
    """Float F_q at x, from the paper's definition of p."""
    for _ in range(q):
        u = (1 - x) * (1 + x)
        x = x * sum(float(c(s)) * u**s for s in range(kappa + 1))
    return x


def test_phi_has_the_values_of_one_minus_tau_in_exact_rationals():
    for kappa in (*range(1, 9), 30):
        for k in range(2 * kappa + 2):  # as many points as determine a polynomial of this degree
            u = Fraction(k, 2 * kappa + 1)
            p = sum(c(s) * u**s for s in range(kappa + 1))
            exact = 1 - (1 - u) * p * p
            assert sum(a * u**j for j, a in enumerate(phi_closed_form(kappa))) == exact
            assert taylor(kappa).phi(u) == exact


def test_the_derivative_of_a_step_is_a_power_of_one_minus_s_squared():
    for kappa in DEGREES:
        lead = (2 * kappa + 1) * c(kappa)
        in_lambda = tuple(lead * a for a in reflect((Fraction(0),) * kappa + (Fraction(1),)))
        f_prime = derivative(taylor(kappa).exact_step)
        assert f_prime[0::2] == in_lambda
        assert set(f_prime[1::2]) == {0}
        assert taylor(kappa).exact[0] == lead


def test_the_slope_at_zero_is_a_power():
    for kappa, q in product([1, 2, 3, 7], [0, 1, 3, 6]):
        assert Schedule.repeat(taylor(kappa), q).slope == ((2 * kappa + 1) * c(kappa)) ** q


@given(KAPPA, UNIT)
def test_a_step_never_lowers_and_never_passes_one(kappa, s):
    assert s <= taylor(kappa).step(s) <= 1


@given(st.integers(1, 4), st.integers(1, 2), st.lists(st.fractions(0, 1, max_denominator=200), min_size=3, max_size=3))
def test_f_increases_and_is_concave_exactly(kappa, q, points):
    a, b, d = sorted(points)
    F = Schedule.repeat(taylor(kappa), q)
    if a < b:
        assert F(a) < F(b)
    if a < b < d:
        chord = F(a) + (F(d) - F(a)) * (b - a) / (d - a)
        assert F(b) > chord


def test_f_increases_and_is_concave_for_many_steps():
    for kappa, q in [(1, 8), (2, 5), (5, 3), (10, 2)]:
        s = np.linspace(0.0, 1.0, 513)
        F = Schedule.repeat(taylor(kappa), q)(s)
        slopes = np.diff(F)
        assert np.all(slopes >= -1e-15)
        assert np.all(np.diff(slopes) <= 1e-15)
        np.testing.assert_allclose(F, compare_after(kappa, q, s), rtol=1e-13, atol=0)


def test_the_same_degree_gives_the_same_object():
    assert taylor(4) is taylor(4)
    assert taylor(np.int64(4)) is taylor(4)
    assert taylor(4).name == "taylor4"


def test_a_bad_degree_is_refused_with_the_way_out():
    for function, (kappa, error, message) in product(
        [taylor, phi_closed_form],
        [
            (0, ValueError, r"kappa must be at least 1, got 0: pass 1 or more"),
            (-3, ValueError, r"kappa must be at least 1, got -3: pass 1 or more"),
            (True, TypeError, r"kappa must be an integer, got True: pass 1 if that is meant"),
            (2.0, TypeError, r"kappa must be an integer, got 2\.0 of type float: pass a whole number"),
            ("2", TypeError, r"kappa must be an integer, got '2' of type str: pass a whole number"),
            (math.nan, TypeError, r"kappa must be an integer, got nan of type float: pass a whole number"),
        ],
    ):
        with pytest.raises(error, match=message):
            function(kappa)
