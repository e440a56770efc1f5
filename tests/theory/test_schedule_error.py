"""The error of a schedule on [ell, 1] is a guarantee that no search beats, and it is reached within one percent."""

import math
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest

from muonlab.polynomials import Polynomial, Schedule, polar_express, preset, taylor
from muonlab.theory import polar_error, schedule_error

NEAR_MINUS_ONE = Polynomial((-1, Fraction(1, 10**6)), name="nearly -1")
SCHEDULES = {
    **{f"taylor{k} x{q}": Schedule.repeat(taylor(k), q) for k, q in ((1, 5), (2, 1), (2, 3), (5, 3))},
    **{f"{name} x{q}": preset(name).schedule(q) for name in ("jordan", "polar_express") for q in (1, 5)},
    "polar_express safe": preset("polar_express").schedule(5, safety="1.01"),
    **{
        f"generated {ell} {k}": polar_express(ell, kappa=k, steps=n)
        for ell, k, n in ((1e-3, 2, 4), (0.05, 1, 4), (0.2, 3, 2))
    },
    "identity": Schedule(()),
    "nearly -1": Schedule((NEAR_MINUS_ONE,)),
    "nearly -1 twice": Schedule((NEAR_MINUS_ONE, NEAR_MINUS_ONE)),
    "taylor to -1": Schedule.repeat(taylor(2), 4) + Schedule((NEAR_MINUS_ONE,)),
    "negative": Schedule((Polynomial((-2, 1)), taylor(1))),
    "through zero": Schedule((Polynomial((2, -3)), Polynomial((1, -1, 2)))),
    "nearly zero": Schedule((Polynomial((Fraction(1, 10**9), Fraction(1, 10**9))),)),
    "growing": Schedule.repeat(Polynomial((2, 1)), 3),
}
ELLS = (0.0, 1e-3, 0.1, 0.6, 1.0)


def golden_maximum(f, low, high, rounds=60):
    """Largest value found by golden section between low and high, in parallel over brackets."""
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(rounds):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        left = f(a) >= f(b)
        high, low = np.where(left, b, high), np.where(left, low, a)
    return f((low + high) / 2)


def searched(schedule, ell, seed=0):
    """Largest |F-1| and |F| found on [ell, 1] by random points, grids and refined local maxima."""
    generator = np.random.default_rng(seed)
    s = np.concatenate(
        [
            generator.uniform(ell, 1.0, 4000),
            np.linspace(ell, 1.0, 8001),
            np.geomspace(max(ell, 1e-12), 1.0, 8001),
            [ell, 1.0],
        ]
    )
    s = np.unique(np.clip(s, ell, 1.0))
    found = []
    for f in (lambda x: np.abs(schedule(x) - 1), lambda x: np.abs(schedule(x))):
        values = f(s)
        best = float(values.max())
        if len(s) > 2:
            peaks = 1 + np.flatnonzero((values[1:-1] >= values[:-2]) & (values[1:-1] >= values[2:]))
            peaks = peaks[np.argsort(values[peaks])[-40:]]
            if peaks.size:
                best = max(best, float(golden_maximum(f, s[peaks - 1], s[peaks + 1]).max()))
        found.append(best)
    return found


def test_no_search_beats_the_guarantee_and_it_is_reached_within_one_percent():
    for ell, name in product(ELLS, SCHEDULES):
        schedule = SCHEDULES[name]
        epsilon, s_max = schedule_error(schedule, ell)
        worst_error, largest = searched(schedule, ell)
        rounding = 1e-12 * float(max(1, schedule.slope if schedule.steps else 1)) ** 0.5  # of the float search itself
        assert worst_error <= epsilon + rounding
        assert largest <= s_max + rounding
        assert worst_error >= 0.99 * epsilon - rounding
        assert largest >= 0.99 * s_max - rounding


def test_the_guarantee_holds_in_exact_arithmetic():
    for name in ["taylor2 x3", "jordan x5", "polar_express x5", "negative", "nearly -1 twice"]:
        schedule, ell = SCHEDULES[name], 0.015625
        epsilon, s_max = schedule_error(schedule, ell)
        s = np.linspace(ell, 1.0, 2001)
        values = schedule(s)
        picked = {int(np.argmin(values)), int(np.argmax(values)), 0, 2000, *range(0, 2001, 250)}
        for k in picked:
            F = schedule(Fraction(float(s[k])))
            assert abs(F - 1) <= Fraction(epsilon)
            assert abs(F) <= Fraction(s_max)


def test_for_taylor_steps_it_is_the_polar_error():
    for kappa, q, ell in product([1, 2, 5], [0, 1, 6], [1e-6, 0.3, 1.0]):
        epsilon, s_max = schedule_error(Schedule.repeat(taylor(kappa), q), ell)
        assert epsilon == pytest.approx(polar_error(sigma_min=ell, kappa=kappa, q=q), rel=1e-11, abs=1e-60)
        assert s_max == pytest.approx(1.0, abs=1e-15)


def test_errors_far_below_rounding_keep_their_digits():
    epsilon = schedule_error(Schedule.repeat(taylor(2), 3), 0.9).epsilon
    assert epsilon == pytest.approx(polar_error(sigma_min=0.9, kappa=2, q=3), rel=1e-10, abs=0)
    assert 0 < epsilon < 1e-15


def test_the_value_minus_one_has_error_two_though_its_residual_is_zero():
    epsilon, s_max = schedule_error(SCHEDULES["taylor to -1"], 0.5)
    assert epsilon == pytest.approx(2.0, abs=1e-5)
    assert s_max == pytest.approx(1.0, abs=1e-5)


def test_from_zero_on_no_schedule_has_an_error_below_one():
    for name, schedule in SCHEDULES.items():
        assert schedule_error(schedule, 0.0).epsilon >= 1.0, name


def test_a_larger_lower_end_never_raises_the_error():
    for schedule in SCHEDULES.values():
        values = [schedule_error(schedule, ell).epsilon for ell in ELLS]
        assert all(later <= earlier * (1 + 1e-15) for earlier, later in pairwise(values))


def test_the_published_numbers_of_jordan_and_polar_express():
    assert schedule_error(preset("jordan").schedule(5), 0.0).s_max == pytest.approx(1.2024, abs=5e-5)
    published = schedule_error(preset("polar_express").schedule(5), 1e-3)
    assert published.s_max == pytest.approx(1 + published.epsilon, abs=1e-3)


def test_a_diverging_schedule_has_an_infinite_error_not_a_crash():
    assert schedule_error(Schedule.repeat(Polynomial((10, 5, 1)), 8), 0.0) == (math.inf, math.inf)


def test_a_bad_lower_end_is_refused():
    for ell, error, message in [
        (-0.1, ValueError, r"ell must be a finite number in \[0, 1\], got -0\.1: choose a value inside that interval"),
        (1.01, ValueError, r"ell must be a finite number in \[0, 1\], got 1\.01: choose a value inside that interval"),
        (math.nan, ValueError, r"ell must be a finite number in \[0, 1\], got nan: choose a value inside"),
        (True, TypeError, r"ell must be a real number, got True of type bool"),
        ("0.1", TypeError, r"ell must be a real number, got '0\.1' of type str"),
    ]:
        with pytest.raises(error, match=message):
            schedule_error(Schedule(()), ell)


def test_a_polynomial_is_no_schedule_and_the_message_says_how_to_make_one():
    with pytest.raises(TypeError, match=r"schedule must be a Schedule, got .*Schedule\.repeat\(polynomial, steps\)"):
        schedule_error(taylor(2), 0.1)
