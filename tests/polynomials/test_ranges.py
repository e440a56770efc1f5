"""Ranges on intervals: safe against exact brute force, and tight."""

import math
import random
import time
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muonlab.polynomials import Polynomial, Schedule, preset, taylor
from muonlab.polynomials.base import derivative, horner
from muonlab.polynomials.ranges import BITS, bernstein, range_on, schedule_range, step_range
from muonlab.theory import schedule_error

RATIONAL = st.fractions(-3, 3, max_denominator=40)


def brute_force(coefficients, low, high, points=200):
    """Exact values at grid points, ends and critical points: the least and the largest."""
    grid = [low + (high - low) * Fraction(k, points) for k in range(points + 1)]
    slope = [float(c) for c in reversed(derivative(coefficients))]
    roots = np.roots(slope) if any(slope) else []
    inside = [Fraction(float(z.real)) for z in roots if abs(z.imag) < 1e-3]
    grid += [x for x in inside if low <= x <= high]
    values = [horner(tuple(coefficients), x) for x in grid]
    return min(values), max(values)


def random_case(generator):
    degree = generator.randint(1, 9)
    coefficients = [Fraction(generator.randint(-500, 500), generator.randint(1, 60)) for _ in range(degree + 1)]
    low = Fraction(generator.randint(-200, 150), 100)
    return coefficients, low, low + Fraction(generator.randint(1, 200), 100)


def test_the_range_contains_every_exact_value_and_is_tight():
    for seed in range(15):
        coefficients, low, high = random_case(random.Random(seed))
        a, b = range_on(coefficients, low, high)
        least, largest = brute_force(coefficients, low, high)
        assert a <= least
        assert largest <= b
        size = max(abs(a), abs(b), Fraction(1))
        assert least - a <= size * Fraction(1, 10**12)
        assert b - largest <= size * Fraction(1, 10**12)


@settings(max_examples=25)
@given(st.lists(RATIONAL, min_size=1, max_size=6), RATIONAL, RATIONAL, st.fractions(0, 1, max_denominator=97))
def test_no_point_of_the_interval_leaves_the_range(coefficients, x, y, t):
    low, high = sorted((x, y))
    a, b = range_on(coefficients, low, high)
    assert a <= horner(tuple(coefficients), low + t * (high - low)) <= b


def test_a_maximum_at_an_irrational_point_is_enclosed_from_outside_within_its_digits():
    # x - x³ on [0, 1]: maximum 2/(3√3) at 1/√3
    low, high = range_on((Fraction(0), Fraction(1), Fraction(0), Fraction(-1)), Fraction(0), Fraction(1))
    assert low <= 0
    assert low >= -Fraction(1, 2**60)
    assert high**2 >= Fraction(4, 27)
    assert high**2 - Fraction(4, 27) <= Fraction(1, 2**60)


def test_tiny_distances_from_one_keep_their_digits():
    # 1 - d + 4 d x (1 - x) has maximum exactly 1; with 2d instead of 4d it is 1 - d/2
    d = Fraction(1, 10**25)
    _, high = range_on((1 - d, 2 * d, -2 * d), Fraction(0), Fraction(1))
    assert high >= 1 - d / 2
    assert high - (1 - d / 2) <= d / 10**15


def test_a_point_a_constant_and_swapped_ends():
    assert range_on((Fraction(1), Fraction(2)), Fraction(3), Fraction(3)) == (7, 7)
    assert range_on((Fraction(-5, 3),), Fraction(0), Fraction(1)) == (Fraction(-5, 3), Fraction(-5, 3))
    with pytest.raises(ValueError, match=r"needs low <= high, got \[1\.0, 0\.0\]: swap the ends"):
        range_on((Fraction(1), Fraction(2)), Fraction(1), Fraction(0))


@settings(max_examples=25)
@given(st.lists(RATIONAL, min_size=1, max_size=6), RATIONAL, st.fractions(0, 1, max_denominator=50))
def test_bernstein_coefficients_rebuild_the_polynomial(coefficients, low, t):
    high = low + 2
    b = bernstein(coefficients, low, high)
    n = len(b) - 1
    value = sum(
        (math.comb(n, k) * t**k * (1 - t) ** (n - k) * beta for k, beta in enumerate(b)),
        Fraction(0),
    )
    assert value == horner(tuple(coefficients), low + 2 * t)


def test_a_step_range_is_rounded_outward_to_short_denominators():
    for p in [taylor(1), taylor(3), preset("jordan").polynomial, Polynomial((-1, Fraction(1, 7)))]:
        low, high = Fraction(1, 3), Fraction(9, 10)
        a, b = step_range(p, low, high)
        exact_a, exact_b = range_on(p.exact_step, low, high)
        assert a <= exact_a
        assert exact_b <= b
        assert exact_a - a < Fraction(1, 2 ** (BITS - 1))
        assert b - exact_b < Fraction(1, 2 ** (BITS - 1))
        assert 2**BITS % a.denominator == 0
        assert 2**BITS % b.denominator == 0


def test_nothing_leaves_a_schedules_range_and_its_ends_are_reached():
    for schedule, low in product(
        [
            Schedule(()),
            Schedule.repeat(taylor(2), 3),
            preset("jordan").schedule(4),
            preset("polar_express").schedule(5),
            Schedule((Polynomial((-2, 1)), taylor(1), Polynomial((1, -3, 1)))),
        ],
        [Fraction(0), Fraction(1, 100), Fraction(1, 2), Fraction(1)],
    ):
        a, b = schedule_range(schedule, low)
        values = [schedule(low + (1 - low) * Fraction(k, 30)) for k in range(31)]
        assert a <= min(values)
        assert max(values) <= b
        dense = schedule(np.linspace(float(low), 1.0, 20_001))
        assert float(a) == pytest.approx(dense.min(), rel=1e-5, abs=1e-5)
        assert float(b) == pytest.approx(dense.max(), rel=1e-5, abs=1e-5)


def test_a_runaway_schedule_is_unbounded_at_once_instead_of_doubling_its_digits():
    start = time.process_time()
    for steps in (12, 16, 40):
        low, high = schedule_range(Schedule.repeat(Polynomial(("2", "2")), steps), Fraction(0))
        assert low < -(10**308)
        assert high > 10**308
    assert schedule_error(Schedule.repeat(Polynomial(("2", "2")), 40), 0.0).s_max == math.inf
    assert time.process_time() - start < 5


def test_large_ranges_short_of_a_runaway_stay_exact():
    F = Schedule.repeat(Polynomial(("2", "2")), 3)
    assert schedule_range(F, Fraction(0)) == (0, F(1))
    assert F(1) > 10**5
