"""Brackets C1 and C2: the gap of a schedule and the two-node Gauss bound, against exact and 50-digit arithmetic."""

import math
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muonlab.polynomials import Polynomial, Schedule, preset, taylor
from muonlab.theory.bracket import bracket_gap, moment_bound

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


# ------------------------------------------------------------------------------------------------------------ moments


def moments(sigma):
    return tuple(math.fsum(s ** (2 * k) for s in sigma) for k in (1, 2, 3))


def gauss_rule(sigma, r):
    """The bound from its definition, by the moments of the eigenvalues in 50 digits."""
    with mpmath.workdps(50):
        lam = [mpmath.mpf(s) ** 2 for s in sigma]
        e1, e2, e3 = (mpmath.fsum(x**k for x in lam) / r for k in (1, 2, 3))
        v, c = e2 - e1**2, e3 - 3 * e1 * e2 + 2 * e1**3
        if v < mpmath.mpf(10) ** -30:
            return r * mpmath.sqrt(e1)
        nodes = mpmath.polyroots([1, -c / v, -v], maxsteps=200, extraprec=400)
        low, high = sorted(mpmath.re(y) for y in nodes)
        w = -low / (high - low)
        return r * (w * mpmath.sqrt(e1 + high) + (1 - w) * mpmath.sqrt(max(mpmath.mpf(0), e1 + low)))


SPECTRA = {
    "1/k": 1 / np.arange(1, 65),
    "log to 1e-6": np.geomspace(1, 1e-6, 32),
    "uniform": np.random.default_rng(0).uniform(size=50),
    "gaussian": np.linalg.svd(np.random.default_rng(1).standard_normal((40, 40)), compute_uv=False),
    "one small": np.r_[np.ones(20), 0.5],
    "one large": np.r_[1.0, np.full(30, 0.03)],
    "half zero": np.r_[np.linspace(1, 0.1, 10), np.zeros(10)],
    "large numbers": np.linspace(1e20, 3e20, 9),
    "tiny numbers": np.linspace(1e-20, 3e-20, 9),
}


def test_the_moment_bound_is_the_two_node_gauss_rule():
    for extra, name in product([0, 7], SPECTRA):
        sigma = SPECTRA[name]
        r = len(sigma) + extra
        unit = sigma / np.max(sigma)
        expected = float(gauss_rule(unit.tolist(), r)) * float(np.max(sigma))
        assert moment_bound(*moments(sigma), r) == pytest.approx(expected, rel=1e-9)


@given(
    sigma=st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=30),
    extra=st.integers(0, 20),
    power=st.sampled_from([1, 4, 12]),
)
def test_the_moment_bound_is_never_below_the_nuclear_norm_nor_above_cauchy_schwarz(sigma, extra, power):
    sigma = [1.0, *(s**power for s in sigma)]  # the moments of 1e-200 alone would underflow
    m1, m2, m3 = moments(sigma)
    r = len(sigma) + extra
    found = moment_bound(m1, m2, m3, r)
    assert found >= math.fsum(sigma) - 1e-7 * math.sqrt(r * m1)  # its docstring's allowance for rounding
    assert found <= math.sqrt(r * m1) * (1 + 1e-12)


def test_the_moment_bound_is_exact_for_two_values_so_that_any_smaller_constant_fails():
    for (k, r), ratio in product([(1, 2), (1, 50), (25, 50), (49, 50)], [0.0, 1e-3, 0.5, 0.99]):
        sigma = [1.0] * k + [ratio] * (r - k)
        found = moment_bound(*moments(sigma), r)
        assert found == pytest.approx(math.fsum(sigma), rel=3e-8)  # the root of a node near 0 keeps half of the digits
        assert found * (1 - 1e-6) < math.fsum(sigma)


def test_the_moment_bound_beats_cauchy_schwarz_and_knows_flat_spectra():
    sigma = SPECTRA["gaussian"]
    assert moment_bound(*moments(sigma), 40) < 0.96 * math.sqrt(40 * moments(sigma)[0])
    assert moment_bound(*moments([3.0] * 5), 5) == pytest.approx(15.0, rel=1e-14)
    assert moment_bound(0.0, 0.0, 0.0, 4) == 0.0


def test_more_eigenvalues_counted_make_the_bound_larger():
    sigma = SPECTRA["1/k"]
    values = [moment_bound(*moments(sigma), r) for r in (64, 70, 100, 1000)]
    assert values == sorted(values)
    assert values[0] < values[-1]


def test_impossible_moments_are_refused_by_rule_and_value():
    for arguments, error, message in [
        ((1.0, 1.0, 1.0, 0), ValueError, r"r must be at least 1, got 0: pass 1 or more"),
        ((1.0, 1.0, 1.0, 2.0), TypeError, r"r must be an integer, got 2\.0 of type float: pass a whole number"),
        ((-1.0, 1.0, 1.0, 2), ValueError, r"m1 must be a finite number in \[0, inf\), got -1\.0: choose a value"),
        ((1.0, math.nan, 1.0, 2), ValueError, r"m2 must be a finite number in \[0, inf\), got nan: choose a value"),
        ((1.0, 1.0, math.inf, 2), ValueError, r"m3 must be a finite number in \[0, inf\), got inf: choose a value"),
    ]:
        with pytest.raises(error, match=message):
            moment_bound(*arguments)
