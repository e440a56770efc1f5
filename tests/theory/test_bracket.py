"""The gap of a schedule, against exact and 50-digit arithmetic."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from muonlab.polynomials import Polynomial, Schedule, preset, taylor
from muonlab.theory.bracket import bracket_gap

PE = preset("polar_express")
SCHEDULES = {
    "identity": Schedule(()),
    "cubic x1": preset("cubic").schedule(1),
    "quintic x3": preset("quintic").schedule(3),
    "quintic x10": preset("quintic").schedule(10),
    "taylor5 x3": Schedule.repeat(taylor(5), 3),
    "cubic then taylor3": Schedule((taylor(1), taylor(3))),
    "jordan x1": preset("jordan").schedule(1),
    "jordan x5": preset("jordan").schedule(5),
    "jordan x5 + 3": preset("jordan").schedule(5) + Schedule.repeat(taylor(2), 3),
    "polar_express x5": PE.schedule(5),
    "polar_express x5 + 2": PE.schedule(5) + Schedule.repeat(taylor(2), 2),
    "polar_express x5, safe, + 2": PE.schedule(5, safety="1.01") + Schedule.repeat(taylor(2), 2),
    "ascending": Schedule((Polynomial((-1, Fraction(1, 10))),)),
}


def grid(points=20_001):
    return np.concatenate(
        [[0.0], np.geomspace(1e-8, 1, points), np.linspace(0, 1, points), 1 - np.geomspace(1e-12, 0.5)]
    )


def largest(F, rounds=6):
    """Largest ``s (1 - F(s))`` found and where: a dense grid, refined around its best point."""
    s = grid()
    for _ in range(rounds):
        values = s * (1 - F(s))
        k = int(np.argmax(values))
        best, where = float(values[k]), float(s[k])
        width = max(np.min(np.abs(np.delete(s, k) - where)), 1e-12) * 4
        s = np.clip(np.linspace(where - width, where + width, 2001), 0, 1)
    return best, where


def in_fifty_digits(F, s):
    with mpmath.workdps(50):
        x = mpmath.mpf(s)
        for p in F.polynomials:
            lam = x * x
            x *= sum((mpmath.mpf(c.numerator) / c.denominator * lam**k for k, c in enumerate(p.exact)), mpmath.mpf(0))
        return mpmath.mpf(s) * (1 - x)


def test_no_singular_value_leaves_more_than_the_gap():
    s = grid()
    for F in SCHEDULES.values():
        assert float(np.max(s * (1 - F(s)))) <= bracket_gap(F)
        for point in (largest(F)[1], 1e-9, 1e-4, 0.37, 1.0):
            assert in_fifty_digits(F, point) <= bracket_gap(F)


def test_the_gap_holds_in_exact_rational_arithmetic():
    for name in [n for n, F in SCHEDULES.items() if F.steps <= 3]:
        F = SCHEDULES[name]
        centre = Fraction(largest(F)[1]).limit_denominator(1 << 12)
        points = [Fraction(k, 256) for k in range(0, 257, 8)] + [
            centre + Fraction(k, 1 << 14) for k in (-2, -1, 0, 1, 2)
        ]
        values = [s * (1 - F(s)) for s in points if 0 <= s <= 1]
        assert max(values) <= Fraction(bracket_gap(F))
        assert max(values) > Fraction(bracket_gap(F)) * Fraction(998, 1000)  # a constant 0.2 % smaller is refuted


def test_the_gap_is_at_most_a_tenth_of_a_percent_above_and_a_smaller_constant_fails():
    for F in SCHEDULES.values():
        found, where = largest(F)
        assert bracket_gap(F) <= 1.0011 * found + 1.1e-9
        if found > 1e-6:
            assert in_fifty_digits(F, where) > 0.998 * bracket_gap(F)


def test_documented_gaps():
    for name, value in [
        ("polar_express x5 + 2", 7.5e-5),
        ("jordan x5 + 3", 8.5e-5),
        ("identity", 0.25),
        ("ascending", 2 - 0.1),
    ]:
        assert bracket_gap(SCHEDULES[name]) == pytest.approx(value, rel=8e-3)


def test_a_diverging_schedule_has_no_gap():
    assert bracket_gap(Schedule.repeat(Polynomial((10, 5, 1)), 8)) == math.inf


def test_a_polynomial_is_no_schedule():
    with pytest.raises(
        TypeError, match=r"schedule must be a Schedule, got .*use Schedule\.repeat\(polynomial, steps\)"
    ):
        bracket_gap(taylor(2))
