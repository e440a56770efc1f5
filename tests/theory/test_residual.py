"""Residual, polar error and factor against 450 digits (Lemmas 1 to 3, Theorem 2)."""

import math
from functools import cache
from itertools import product

import mpmath
import pytest

from muonlab.theory import chi, polar_error, residual_after

DIGITS = 450
TINY = 1e-300  # below it only smallness is compared: there float64 runs out of exponents, then of digits
DELTAS = (1e-12, 1e-3, 0.5, 0.9, 1 - 1e-6, 1 - 1e-12)
SMALL = (1e-12, 1e-6, 0.1, 0.5, 1 - 1e-6, 1.0)
KAPPAS, STEPS = (1, 2, 3, 5, 10), range(13)
ARGUMENTS = [
    *(("delta_0", x) for x in DELTAS),
    *(("lambda_0", x) for x in SMALL),
    *(("sigma_min", x) for x in SMALL),
]


def start(name, value):
    """Smallest eigenvalue λ_0, the float argument taken as exact."""
    x = mpmath.mpf(value)
    return {"delta_0": 1 - x, "lambda_0": x, "sigma_min": x * x}[name]


@cache
def central(s):
    return mpmath.binomial(2 * s, s) / mpmath.mpf(4) ** s


def eigenvalues(lam, kappa):
    """λ_0 … λ_12 by λ ↦ λ p_κ(λ)², from the definition of p_κ."""
    yield lam
    for _ in range(12):
        u, p = 1 - lam, mpmath.mpf(0)
        for s in range(kappa, -1, -1):
            p = p * u + central(s)
        lam = lam * p * p
        yield lam


def agrees(value, reference):
    """Relative difference at most 1e-12, or both at most 1e-300."""
    if abs(reference) <= TINY:
        return 0 <= value <= 2 * TINY
    return abs(mpmath.mpf(value) - reference) <= mpmath.mpf("1e-12") * abs(reference)


def test_the_recursion_agrees_with_450_digits():
    for kappa, (name, value) in product(KAPPAS, ARGUMENTS):
        with mpmath.workdps(DIGITS):
            for q, lam in enumerate(eigenvalues(start(name, value), kappa)):
                arguments = {name: value, "kappa": kappa, "q": q}
                root = mpmath.sqrt(lam)
                assert agrees(residual_after(**arguments), 1 - lam), q
                assert agrees(polar_error(**arguments), 1 - root), q
                assert agrees(chi(**arguments), 1 / root), q


def test_the_closed_bound_agrees_with_450_digits():
    for kappa, (name, value) in product(KAPPAS, ARGUMENTS):
        with mpmath.workdps(DIGITS):
            delta_0 = 1 - start(name, value)
            for q in STEPS:
                arguments = {name: value, "kappa": kappa, "q": q, "bound": True}
                delta = delta_0 ** ((kappa + 1) ** q)
                root = mpmath.sqrt(1 - delta)
                assert agrees(residual_after(**arguments), delta), q
                assert agrees(polar_error(**arguments), 1 - root), q
                assert agrees(chi(**arguments), 1 / root), q


def test_the_comparison_itself_rejects_an_error_of_1e_11():
    with mpmath.workdps(DIGITS):
        reference = mpmath.mpf("0.3")
        assert agrees(0.3, reference)
        assert not agrees(0.3 * (1 + 1e-11), reference)
        assert not agrees(1e-200, mpmath.mpf("1e-310"))


def test_a_residual_near_one_has_lost_the_eigenvalue_that_lambda_0_keeps():
    kept = chi(lambda_0=1e-9, q=0)
    lost = chi(1 - 1e-9, q=0)
    assert kept == pytest.approx(1e-9**-0.5, rel=1e-14, abs=0)
    assert abs(lost / kept - 1) > 1e-9


def test_the_ends_of_the_range_need_no_digits():
    assert residual_after(0.5, 10, 400, bound=True) == 0.0
    assert chi(0.5, 10, 400, bound=True) == 1.0
    for sigma in (1e-150, 1e-300):
        assert chi(sigma_min=sigma, q=0) == pytest.approx(1 / sigma, rel=1e-12, abs=0)
    for bound in (False, True):
        assert residual_after(0.0, 2, 3, bound) == 0.0
        assert polar_error(0.0, 2, 3, bound) == 0.0
        assert chi(0.0, 2, 3, bound) == 1.0


def test_bad_arguments_are_refused_by_rule_and_value():
    for function, (arguments, error, message) in product(
        [residual_after, polar_error, chi],
        [
            (
                {"delta_0": 1.0},
                ValueError,
                r"delta_0 must be a finite number in \[0, 1\), got 1\.0: choose a value inside",
            ),
            ({"delta_0": -0.1}, ValueError, r"delta_0 must be a finite number in \[0, 1\), got -0\.1: choose a value"),
            (
                {"delta_0": math.nan},
                ValueError,
                r"delta_0 must be a finite number in \[0, 1\), got nan: choose a value",
            ),
            ({"delta_0": True}, TypeError, r"delta_0 must be a real number, got True of type bool"),
            ({"delta_0": "0.5"}, TypeError, r"delta_0 must be a real number, got '0\.5' of type str"),
            ({"lambda_0": 0.0}, ValueError, r"lambda_0 must be a finite number in \(0, 1\], got 0\.0: choose a value"),
            ({"lambda_0": 1.5}, ValueError, r"lambda_0 must be a finite number in \(0, 1\], got 1\.5: choose a value"),
            (
                {"sigma_min": 0.0},
                ValueError,
                r"sigma_min must be a finite number in \(0, 1\], got 0\.0: choose a value",
            ),
            ({"sigma_min": [0.5, 0.6]}, TypeError, r"sigma_min must be a real number, got \[0\.5, 0\.6\] of type list"),
            ({}, ValueError, r"give exactly one of delta_0, lambda_0, sigma_min, got none: lambda_0 = 1 - delta_0"),
            (
                {"delta_0": 0.5, "sigma_min": 0.5},
                ValueError,
                r"give exactly one of .*got delta_0 and sigma_min: lambda_0 = 1 - delta_0 = sigma_min\*\*2",
            ),
            ({"delta_0": 0.5, "kappa": 0}, ValueError, r"kappa must be at least 1, got 0: pass 1 or more"),
            (
                {"delta_0": 0.5, "kappa": 2.0},
                TypeError,
                r"kappa must be an integer, got 2\.0 of type float: pass a whole",
            ),
            ({"delta_0": 0.5, "q": -1}, ValueError, r"q must be at least 0, got -1: pass 0 or more"),
            ({"delta_0": 0.5, "q": True}, TypeError, r"q must be an integer, got True: pass 1 if that is meant"),
            ({"delta_0": 0.5, "q": "3"}, TypeError, r"q must be an integer, got '3' of type str: pass a whole number"),
        ],
    ):
        with pytest.raises(error, match=message):
            function(**arguments)
