"""The Taylor polynomials of the inverse root: closed forms exact to κ = 30 and the scalar laws (Proposition 1)."""

import math
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muonlab.polynomials import Schedule, taylor
from muonlab.polynomials.base import derivative, multiply, reflect
from muonlab.polynomials.taylor_polynomial import central, phi_closed_form

ALL = range(1, 31)
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


def test_central_is_the_taylor_coefficient_of_the_inverse_root():
    for s in range(12):
        falling = math.prod((Fraction(-1, 2) - k for k in range(s)), start=Fraction(1))
        assert central(s) == c(s) == (-1) ** s * falling / math.factorial(s)


def test_both_bases_agree_exactly():
    for kappa in ALL:
        p = taylor(kappa)
        assert p.exact_u == tuple(c(s) for s in range(kappa + 1))
        assert reflect(p.exact) == p.exact_u
        assert reflect(p.exact_u) == p.exact


def test_the_closed_form_of_phi_is_exact():
    for kappa in ALL:
        assert taylor(kappa).exact_phi == phi_closed_form(kappa)


def test_phi_starts_at_power_kappa_plus_one_with_positive_coefficients_that_sum_to_one():
    for kappa in ALL:
        phi = taylor(kappa).exact_phi
        assert set(phi[: kappa + 1]) == {0}
        assert min(phi[kappa + 1 :]) > 0
        assert sum(phi) == 1
        assert phi[kappa + 1] == 2 * c(kappa + 1)


def test_phi_of_the_cubic_and_the_quintic_have_their_known_coefficients():
    assert phi_closed_form(1) == (0, 0, Fraction(3, 4), Fraction(1, 4))
    assert phi_closed_form(2) == (0, 0, 0, Fraction(40, 64), Fraction(15, 64), Fraction(9, 64))


def test_the_derivative_of_tau_is_one_power_of_u_times_p():
    for kappa in ALL:
        p = taylor(kappa)
        lead = (2 * kappa + 1) * c(kappa)
        tau = multiply((Fraction(0), Fraction(1)), multiply(p.exact, p.exact))
        claimed_u = (Fraction(0),) * kappa + tuple(lead * a for a in p.exact_u)
        assert derivative(tau) == reflect(claimed_u)
        third = Fraction(1, 3)
        assert p.dtau(third) == lead * (1 - third) ** kappa * p(third)


def test_the_derivative_of_a_step_is_a_power_of_one_minus_s_squared():
    for kappa in ALL:
        lead = (2 * kappa + 1) * c(kappa)
        in_lambda = tuple(lead * a for a in reflect((Fraction(0),) * kappa + (Fraction(1),)))
        f_prime = derivative(taylor(kappa).exact_step)
        assert f_prime[0::2] == in_lambda
        assert set(f_prime[1::2]) == {0}
        assert taylor(kappa).exact[0] == lead


def test_the_slope_at_zero_is_a_power():
    for kappa, q in product([1, 2, 3, 7], [0, 1, 3, 6]):
        assert Schedule.repeat(taylor(kappa), q).slope == ((2 * kappa + 1) * c(kappa)) ** q


@given(KAPPA, UNIT, UNIT)
def test_tau_increases_strictly(kappa, x, y):
    p = taylor(kappa)
    low, high = sorted((x, y))
    assert low == high or p.tau(low) < p.tau(high)
    assert p.tau(1) == 1
    assert p.tau(0) == 0


@given(KAPPA, UNIT)
def test_phi_lies_between_its_first_term_and_its_first_power(kappa, u):
    phi = taylor(kappa).phi(u)
    assert 2 * c(kappa + 1) * u ** (kappa + 1) <= phi <= u ** (kappa + 1)


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


def test_higher_degrees_come_closer_to_the_inverse_root():
    lam = Fraction(4, 9)
    gaps = [Fraction(3, 2) - taylor(k)(lam) for k in ALL]
    assert all(0 < later < earlier for earlier, later in pairwise(gaps))


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


def test_a_negative_index_is_refused():
    with pytest.raises(ValueError, match=r"s must be at least 0, got -1: pass 0 or more"):
        central(-1)
