"""Proposition 1: p_κ ≥ 1, τ increases to τ(1) = 1, and steps keep the unit ball (Kim & Oh 2026, Proposition 1)."""

from fractions import Fraction
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from muonlab.polynomials import Polynomial, Schedule, analyse, preset, taylor
from muonlab.polynomials.base import derivative, horner, multiply_polynomials, reflect
from muonlab.polynomials.taylor_polynomial import central
from tests.paper.simulation import by_newton_schulz, operator, with_spectrum

KAPPAS = st.integers(1, 12)
UNIT = st.fractions(0, 1, max_denominator=10**6)
JORDAN = preset("jordan").polynomial


def at_least(p, lam, floor=1):
    """Check ``p(λ) ≥ floor`` with equality at λ = 1 alone."""
    return p(lam) > floor if lam != 1 else p(lam) == floor


def tau_orders(p, low, high):
    """Check ``τ(low) < τ(high) ≤ τ(1) = 1`` for ``low < high``."""
    return p.tau(low) < p.tau(high) <= p.tau(Fraction(1)) == 1


def derivative_is(p, power, factor=1):
    """Check ``τ'(λ) = factor·(2κ+1) c_κ (1-λ)^power p(λ)`` as polynomials in u, exactly."""
    lead = factor * (2 * p.kappa + 1) * central(p.kappa)
    claimed = multiply_polynomials((Fraction(0),) * power + (lead,), p.exact_u)
    return derivative(p.exact_phi) == claimed


@settings(derandomize=True, deadline=None, max_examples=60)
@given(KAPPAS, UNIT)
def test_p_is_at_least_one_with_equality_at_one_alone(kappa, lam):
    assert at_least(taylor(kappa), lam)


def test_no_larger_floor_of_p_holds():
    for kappa in range(1, 13):
        assert not at_least(taylor(kappa), Fraction(999_999, 1_000_000), floor=Fraction(1001, 1000))
        assert at_least(taylor(kappa), Fraction(999_999, 1_000_000), floor=1)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(KAPPAS, UNIT, UNIT)
def test_tau_increases_strictly_up_to_one(kappa, x, y):
    if x != y:
        assert tau_orders(taylor(kappa), min(x, y), max(x, y))


def test_tau_of_the_ad_hoc_polynomial_does_not_increase():
    assert not tau_orders(JORDAN, Fraction(3075, 10_000), Fraction(1))
    assert not tau_orders(JORDAN, Fraction(1, 2), Fraction(6, 10))


def test_the_derivative_of_tau_has_a_zero_of_order_kappa_at_one():
    for kappa in (1, 2, 3, 8, 20):
        assert derivative_is(taylor(kappa), kappa)
        assert not derivative_is(taylor(kappa), kappa + 1)
        assert not derivative_is(taylor(kappa), kappa - 1)
        assert not derivative_is(taylor(kappa), kappa, factor=2)


def test_the_derivative_in_powers_of_lambda_is_p_times_p_plus_two_lambda_p_prime():
    for kappa in (1, 2, 3, 8, 20):
        p = taylor(kappa)
        inner = [a + 2 * k * a for k, a in enumerate(p.exact)]
        exact = multiply_polynomials(p.exact, inner)
        for lam in (Fraction(0), Fraction(1, 3), Fraction(7, 8), Fraction(1)):
            assert p.dtau(lam) == horner(exact, lam)
        assert reflect(derivative(p.exact_phi)) == exact


def test_a_step_maps_the_unit_ball_into_itself():
    for kappa, shape in product([1, 2, 3, 6], [(5, 5), (3, 6), (6, 3)]):
        rng = np.random.default_rng([kappa, *shape])
        for _ in range(10):
            M = with_spectrum(rng, rng.uniform(0, 1, 3) ** 2, *shape)
            assert operator(by_newton_schulz(taylor(kappa), 1, "none")(M)) <= 1 + 1e-12


def test_the_ad_hoc_step_and_an_inflated_taylor_step_leave_the_unit_ball():
    M = np.diag([0.55, 0.2])
    assert operator(by_newton_schulz(JORDAN, 1, "none")(M)) > 1.1
    inflated = Polynomial(tuple(c * Fraction(11, 10) for c in taylor(2).exact))
    assert operator(by_newton_schulz(inflated, 1, "none")(np.eye(2))) > 1.05


def test_the_library_decides_the_premises_like_the_paper():
    for kappa in range(1, 13):
        found = analyse(taylor(kappa))
        assert (found.positive, found.at_least_one, found.tau_increasing, found.unit_ball) == (True,) * 4
        assert found.covered
    found = analyse(JORDAN)
    assert (found.positive, found.at_least_one, found.tau_increasing, found.unit_ball) == (True, False, False, False)
    assert not found.covered
    dented = Polynomial((Fraction(15, 8), Fraction(-5, 4) + Fraction(1, 10**9), Fraction(3, 8) - Fraction(1, 10**9)))
    assert not analyse(dented).tau_increasing


def test_the_composed_map_is_increasing_and_concave_with_the_slope_of_its_closed_form():
    for kappa, q in product([1, 2, 3], [1, 2, 4]):
        schedule = Schedule.repeat(taylor(kappa), q)
        assert schedule.slope == ((2 * kappa + 1) * central(kappa)) ** q
        F = schedule(np.linspace(0.0, 1.0, 2001))
        assert np.all(np.diff(F) >= -1e-15)
        assert np.all(np.diff(F, 2) <= 1e-12)
