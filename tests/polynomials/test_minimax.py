"""Minimax steps: equioscillation, optimality, and the published Polar Express table."""

import math
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest

from muonlab.polynomials import Polynomial, Schedule, minimax_step, polar_express, preset, taylor
from muonlab.polynomials.ranges import schedule_range
from muonlab.theory import schedule_error

INTERVALS = [(1e-3, 1.0, 2), (0.05, 1.0, 1), (0.3, 1.7, 2), (0.5, 1.5, 3), (0.1, 1.9, 4), (0.02, 1.0, 5), (0.9, 1.1, 2)]


def errors(coefficients, low, high, points=4001):
    """Error 1 - s·p(s²) on Chebyshev points of the interval, in the basis that does not cancel."""
    s = (low + high) / 2 - (high - low) / 2 * np.cos(np.linspace(0, math.pi, points))
    return s, 1 - s * np.polynomial.polynomial.polyval(s * s, coefficients)


def worst(coefficients, low, high):
    return float(np.abs(errors(coefficients, low, high)[1]).max())


def test_the_published_table_comes_out_to_five_digits():
    generated = polar_express(1e-3, kappa=2, steps=7)
    for mine, published in zip(generated.polynomials[:6], preset("polar_express").table[:6], strict=True):
        np.testing.assert_allclose(mine.coefficients, published.coefficients, rtol=0, atol=1e-5)
    last = preset("polar_express").table[6].coefficients
    np.testing.assert_allclose(generated.polynomials[6].coefficients, last, rtol=0, atol=1e-4)


def test_the_error_of_a_minimax_step_oscillates_between_equal_extremes():
    for low, high, kappa in INTERVALS:
        s, e = errors(minimax_step(low, high, kappa).coefficients, low, high)
        turns = [0, *(np.flatnonzero(np.diff(np.sign(np.diff(e)))) + 1), len(s) - 1]
        extremes = e[turns]
        assert len(extremes) == kappa + 2
        np.testing.assert_allclose(np.abs(extremes), np.abs(e).max(), rtol=1e-5, atol=1e-13)
        assert np.all(np.sign(extremes[1:]) == -np.sign(extremes[:-1]))
        assert extremes[0] > 0


def test_no_perturbation_of_a_minimax_step_lowers_its_largest_error():
    for low, high, kappa in INTERVALS:
        coefficients = np.array(minimax_step(low, high, kappa).coefficients)
        best = worst(coefficients, low, high)
        generator = np.random.default_rng(kappa)
        for size in (1e-1, 1e-2, 1e-3, 1e-4):
            for _ in range(20):
                direction = generator.standard_normal(kappa + 1)
                moved = coefficients * (1 + size * direction)
                assert worst(moved, low, high) >= best * (1 - 1e-7)


def test_an_interval_of_one_point_gives_the_taylor_polynomial_there():
    for kappa, point in product([1, 2, 3, 6], [1.0, 0.8]):
        p = minimax_step(point, point, kappa)
        assert p.step(point) == pytest.approx(1.0, rel=1e-13)
        for s in (0.3, 0.7, 0.95):
            assert p.step(s) == pytest.approx(taylor(kappa).step(s / point), rel=1e-12, abs=0)


def test_the_last_error_is_the_guaranteed_one():
    for kappa, ell, steps in product([1, 2, 5], [1e-4, 0.02, 0.9], [1, 6]):
        F = polar_express(ell, kappa=kappa, steps=steps)
        claimed = 1 - F(ell)  # least value at ell, range symmetric about 1; steep steps magnify the rounding of ell
        rounding = 1e-14 + 1e-15 * float(F.slope)
        assert schedule_error(F, ell).epsilon == pytest.approx(max(claimed, 0.0), rel=1e-9, abs=rounding)
        assert schedule_error(F, ell).s_max == pytest.approx(1 + claimed, rel=0, abs=1e-9 * claimed + rounding)


def test_it_is_better_than_taylor_with_as_many_steps():
    for kappa, ell in product([1, 2, 3], [1e-3, 0.05]):
        for steps in (1, 5):
            mine = schedule_error(polar_express(ell, kappa=kappa, steps=steps), ell).epsilon
            assert mine < schedule_error(Schedule.repeat(taylor(kappa), steps), ell).epsilon


def test_more_steps_and_higher_degrees_lower_the_error():
    by_steps = [schedule_error(polar_express(1e-3, steps=n), 1e-3).epsilon for n in range(1, 8)]
    assert all(later < earlier for earlier, later in pairwise(by_steps[:6]))
    by_degree = [schedule_error(polar_express(0.01, kappa=k, steps=3, cushion=0.0), 0.01).epsilon for k in (1, 2, 3, 4)]
    assert all(later < earlier for earlier, later in pairwise(by_degree))


def test_without_a_cushion_one_step_is_the_minimax_step():
    F = polar_express(0.1, kappa=2, steps=1, cushion=0.0)
    np.testing.assert_allclose(
        F.polynomials[0].coefficients, minimax_step(0.1, 1.0, 2).coefficients, rtol=1e-10, atol=0
    )


def test_the_cushion_flattens_the_first_step_at_a_price():
    steep, flat = polar_express(1e-3, steps=1, cushion=0.0), polar_express(1e-3, steps=1, cushion=0.1)
    assert flat.slope < steep.slope
    assert schedule_error(flat, 1e-3).epsilon > schedule_error(steep, 1e-3).epsilon


def test_no_perturbed_two_step_composition_is_better():
    for seed in range(3):
        ell, generator = 0.05, np.random.default_rng(seed)
        F = polar_express(ell, kappa=2, steps=2, cushion=0.0)
        s = np.concatenate([np.geomspace(ell, 1.0, 4000), [ell, 1.0]])
        best = np.abs(1 - F(s)).max()
        for size in (1e-1, 1e-2, 1e-3):
            for _ in range(10):
                moved = Schedule(
                    tuple(
                        Polynomial(
                            [
                                c * (1 + size * z)
                                for c, z in zip(p.coefficients, generator.standard_normal(3), strict=True)
                            ]
                        )
                        for p in F
                    )
                )
                assert np.abs(1 - moved(s)).max() >= best * (1 - 1e-6)


def test_a_schedule_is_named_after_its_arguments_and_may_be_empty():
    assert Schedule.polar_express(0.01, kappa=3, steps=2) == polar_express(0.01, kappa=3, steps=2)
    assert str(polar_express(0.01, kappa=3, steps=2)) == "polar_express(ell=0.01, kappa=3, steps=2)"
    assert polar_express(0.5, steps=0).polynomials == ()


def test_bad_arguments_are_refused_by_rule_and_value():
    for function, arguments, error, message in [
        (polar_express, {"ell": 0.0}, ValueError, r"ell must be a finite number in \(0, 1\], got 0\.0: choose a value"),
        (polar_express, {"ell": 1.5}, ValueError, r"ell must be a finite number in \(0, 1\], got 1\.5: choose a value"),
        (polar_express, {"ell": "0.1"}, TypeError, r"ell must be a real number, got '0\.1' of type str"),
        (polar_express, {"ell": 0.1, "kappa": 0}, ValueError, r"kappa must be at least 1, got 0: pass 1 or more"),
        (polar_express, {"ell": 0.1, "steps": -1}, ValueError, r"steps must be at least 0, got -1: pass 0 or more"),
        (polar_express, {"ell": 0.1, "cushion": 1.0}, ValueError, r"cushion must be .* in \[0, 1\), got 1\.0"),
        (minimax_step, {"low": 0.5, "high": 0.2, "kappa": 2}, ValueError, r"needs low <= high, got \[0\.5, 0\.2\]"),
        (minimax_step, {"low": 0.0, "high": 1.0, "kappa": 2}, ValueError, r"low must be .* in \(0, inf\), got 0\.0"),
    ]:
        with pytest.raises(error, match=message):
            function(**arguments)


def test_high_degrees_are_solved_or_refused_with_the_way_out():
    for arguments in ((0.9, 12, 1), (0.1, 12, 2), (1e-3, 8, 4)):
        schedule = polar_express(*arguments)
        low, high = schedule_range(schedule, Fraction(arguments[0]))
        assert 0 < low <= high < 2
    with pytest.raises(ValueError, match=r"solvable in float64, got kappa = 40 on .*lower kappa, or raise ell"):
        polar_express(1e-9, 40, 2, cushion=0.0)
