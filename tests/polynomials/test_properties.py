"""Which premises of Proposition 1 a polynomial satisfies, and the digits of the paper's last appendix."""

from fractions import Fraction

import pytest

from muonlab.polynomials import Polynomial, analyse, preset, taylor
from muonlab.polynomials.base import reflect
from muonlab.polynomials.properties import (
    is_at_least_one,
    is_positive,
    preserves_unit_ball,
    tau_is_increasing,
)

JORDAN = preset("jordan").polynomial


def test_the_ad_hoc_polynomial_is_not_covered_and_the_reason_names_every_failure():
    a = analyse(JORDAN)
    assert not a.covered
    assert a.positive
    assert not a.tau_increasing
    assert not a.unit_ball
    assert not a.at_least_one
    assert a.p_at_one == pytest.approx(0.701, abs=1e-12)
    assert a.tau_at_one == pytest.approx(0.701**2, abs=1e-12)
    for part in ("tau is not increasing", "-0.506823", "tau exceeds 1", "p(1) = 0.701, not 1"):
        assert part in a.reason


def test_the_taylor_polynomials_are_covered():
    for kappa in (1, 2, 3, 12):
        a = analyse(taylor(kappa))
        assert a.covered
        assert a.at_least_one
        assert a.positive
        assert a.p_range[0] == 1.0
        assert a.tau_at_one == 1.0
        assert a.dtau_at_one == 0.0
        assert a.tau_extrema == ()
        assert a.reason == "Proposition 1 holds: tau increases on [0, 1] to tau(1) = 1"


def test_each_premise_is_decided_on_its_own():
    for p, positive, at_least_one, increasing, ball in [
        (Polynomial((2, -1)), True, True, False, False),  # τ = λ(2-λ)²: maximum 32/27 at 2/3
        (Polynomial((1, -1)), False, False, False, True),  # vanishes at 1
        (Polynomial((1, 1)), True, False, True, False),  # τ(1) = 4
        (Polynomial((3, -1)), True, False, True, False),  # above 1 everywhere, p(1) = 2
        (Polynomial((-1, Fraction(-1, 10))), False, False, True, False),  # negative, yet τ increases
        (Polynomial((1, Fraction(-1, 4))), True, False, True, True),  # τ(1) = 9/16
        (Polynomial((1, Fraction(-2, 3))), True, False, False, True),  # τ' = (1 - 2λ/3)(1 - 2λ) turns at 1/2
        (Polynomial((Fraction(3, 2), Fraction(-1, 2))), True, True, True, True),
    ]:
        assert is_positive(p) is positive
        assert is_at_least_one(p) is at_least_one
        assert tau_is_increasing(p) is increasing
        assert preserves_unit_ball(p) is ball


def test_a_dip_below_one_between_the_ends_is_seen():
    # p - 1 = u (u - 1/2)² - tiny·u has p(0) > 1 and p(1) = 1 and dips below 1 at u = 1/2
    tiny = Fraction(1, 10**9)
    in_u = (Fraction(1), Fraction(1, 4) - tiny, Fraction(-1), Fraction(1))
    assert not is_at_least_one(Polynomial(reflect(in_u)))
    above = (Fraction(1), Fraction(1, 4) + tiny, Fraction(-1), Fraction(1))
    assert is_at_least_one(Polynomial(reflect(above)))


def test_tau_that_is_flat_at_zero_still_increases_strictly():
    assert tau_is_increasing(Polynomial((0, 1)))  # τ = λ³


def test_the_polynomial_that_vanishes_reports_its_range():
    a = analyse(Polynomial((1, -2)))
    assert a.p_range == (-1.0, 1.0)
    assert not a.covered
    assert "p is not positive on [0, 1] (range -1 to 1)" in a.reason
    assert a.tau_extrema == pytest.approx((1 / 6, 1 / 2), abs=1e-12)
