"""The slope of composed steps, and how an error in the Gram matrix reaches their result."""

import math
from fractions import Fraction

import numpy as np
import pytest

from muonlab.orthogonalize.segments import gram_sensitivity, slope_along
from muonlab.polynomials import Polynomial, preset, taylor
from muonlab.polynomials.base import derivative, horner, multiply_polynomials

SEGMENTS = {
    "nothing": (),
    "cubic": (taylor(1),),
    "quintic x3": (taylor(2),) * 3,
    "degree 3 x2": (taylor(3),) * 2,
    "jordan x2": preset("jordan").schedule(2).polynomials,
    "polar_express x3": preset("polar_express").schedule(3).polynomials,
    "mixed": (taylor(1), preset("jordan").polynomial, taylor(3)),
}
POINTS = [Fraction(k, 64) for k in range(65)]


def exact_slope(segment, s):
    """F and F' in rational numbers, from the coefficients of each step as a polynomial of s."""
    slope = Fraction(1)
    for p in segment:
        slope *= horner(derivative(p.exact_step), s)
        s = horner(p.exact_step, s)
    return s, slope


def exact_multiplier(segment):
    """Coefficients of Q in powers of λ, where the segment maps X to Q(X Xᵀ) X."""
    Q = (Fraction(1),)
    for p in segment:
        lam = multiply_polynomials(
            (Fraction(0), Fraction(1)), multiply_polynomials(Q, Q)
        )  # λ of the next step, λ Q(λ)²
        value = (Fraction(0),)
        for c in reversed(p.exact):
            constant, *rest = multiply_polynomials(value, lam)
            value = (constant + c, *rest)
        Q = multiply_polynomials(Q, value)
    return Q


@pytest.mark.parametrize("segment", SEGMENTS.values(), ids=SEGMENTS)
def test_values_and_slopes_are_those_of_rational_arithmetic(segment):
    values, slopes = slope_along(segment, np.array([float(s) for s in POINTS]))
    exact = [exact_slope(segment, s) for s in POINTS]
    assert values == pytest.approx([float(value) for value, _ in exact], rel=1e-10, abs=1e-12)
    steepest = max(abs(float(derivative)) for _, derivative in exact)
    assert slopes == pytest.approx([float(derivative) for _, derivative in exact], rel=1e-10, abs=1e-12 * steepest)


def test_the_input_of_the_slope_is_not_changed():
    s = np.linspace(0, 1, 5)
    slope_along((taylor(2),), s)
    assert s.tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_the_sensitivity_of_one_step_has_a_closed_form():
    assert gram_sensitivity((taylor(1),)) == pytest.approx(0.5, rel=1e-9)  # √λ/2, largest at λ = 1
    assert gram_sensitivity((taylor(2),)) == pytest.approx(5 * math.sqrt(5) / 18, rel=1e-6)  # √λ|3λ - 5|/4, at λ = 5/9
    assert gram_sensitivity((Polynomial((2, 0, -1)),)) == pytest.approx(2.0, rel=1e-9)  # 2 √λ λ


@pytest.mark.parametrize("name", [name for name in SEGMENTS if name != "nothing"])
def test_the_sensitivity_is_the_largest_root_of_lambda_times_the_slope_of_the_multiplier(name):
    dQ = derivative(exact_multiplier(SEGMENTS[name]))
    lam = [Fraction(k, 400) ** 2 for k in range(1, 401)]
    expected = max(math.sqrt(x) * abs(float(horner(dQ, x))) for x in lam)
    assert gram_sensitivity(SEGMENTS[name]) == pytest.approx(expected, rel=2e-3)
