"""Theorem 2: δ_q, ε_q and χ_q fall doubly exponentially in the number of steps (Kim & Oh 2026, Theorem 2)."""

import math
from itertools import pairwise, product

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muonlab.polynomials import taylor
from muonlab.theory import chi, polar_error, residual_after
from tests.paper.simulation import by_newton_schulz, observed_error, observed_residual, singular, with_spectrum

SIGMAS = st.floats(1e-8, 0.999)
KAPPAS, STEPS = st.integers(1, 5), st.integers(0, 5)


def closed(sigma, kappa, q, order=1, root=0.5):
    """δ, ε, χ of ``δ_0^{(κ+order)^q}`` with 400 digits, from the least singular value."""
    with mpmath.workdps(400):
        delta = (1 - mpmath.mpf(sigma) ** 2) ** (mpmath.mpf(kappa + order) ** q)
        return float(delta), float(1 - (1 - delta) ** root), float((1 - delta) ** -root)


def within(sigma, kappa, q, **wrong):
    """Check that the exact δ_q, ε_q and χ_q do not exceed the closed bounds."""
    exact = (f(sigma_min=sigma, kappa=kappa, q=q) for f in (residual_after, polar_error, chi))
    return all(x <= y * (1 + 1e-9) for x, y in zip(exact, closed(sigma, kappa, q, **wrong), strict=True))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(SIGMAS, KAPPAS, STEPS)
def test_residual_error_and_factor_never_exceed_the_bounds_of_theorem_2(sigma, kappa, q):
    assert within(sigma, kappa, q)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(SIGMAS, KAPPAS, STEPS)
def test_library_bounds_are_the_closed_expressions_to_full_precision(sigma, kappa, q):
    found = [f(sigma_min=sigma, kappa=kappa, q=q, bound=True) for f in (residual_after, polar_error, chi)]
    assert np.allclose(found, closed(sigma, kappa, q), rtol=1e-12 * (kappa + 2) ** q, atol=1e-300)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(SIGMAS, KAPPAS, STEPS)
def test_the_error_bound_is_at_most_the_residual_bound(sigma, kappa, q):
    delta = residual_after(sigma_min=sigma, kappa=kappa, q=q, bound=True)
    epsilon = polar_error(sigma_min=sigma, kappa=kappa, q=q, bound=True)
    assert delta / 2 * (1 - 1e-12) <= epsilon <= delta


def test_a_sharper_exponent_is_rejected():
    for kappa, q in product([1, 2, 3, 5], [1, 2, 3]):
        assert within(0.8, kappa, q)
        assert not within(0.8, kappa, q, order=2)


def test_an_exponent_linear_in_the_steps_does_not_reproduce_the_bound():
    for kappa, q in [(1, 3), (2, 2), (2, 4)]:
        assert residual_after(0.9, kappa, q, bound=True) == pytest.approx(0.9 ** ((kappa + 1) ** q), rel=1e-11, abs=0.0)
        assert residual_after(0.9, kappa, q, bound=True) < 0.95 * 0.9 ** ((kappa + 1) * q)


def test_a_smaller_power_of_one_minus_delta_in_the_factor_is_rejected():
    assert within(1e-3, 2, 1)
    assert not within(1e-3, 2, 1, root=0.25)


def test_matrices_obey_the_bounds():
    for kappa, q in product([1, 2], [1, 3, 5]):
        rng = np.random.default_rng([kappa, q])
        for shape in ((4, 4), (3, 8)):
            M = rng.standard_normal(shape)
            X = by_newton_schulz(taylor(kappa), q, "frobenius")(M)
            least = singular(M)[-1] / np.linalg.norm(M)
            delta, epsilon, factor = closed(least, kappa, q)
            assert observed_residual(M, X) <= delta + 1e-10
            assert observed_error(M, X) <= epsilon + 1e-10
            assert 1 / (1 - observed_error(M, X)) <= factor * (1 + 1e-9)


def test_matrices_refute_the_bounds_of_the_next_degree():
    M = with_spectrum(np.random.default_rng(1), [1.0, 0.5], 3, 4)
    X = by_newton_schulz(taylor(1), 2, "none")(M)
    assert observed_error(M, X) <= closed(0.5, 1, 2)[1]
    assert observed_error(M, X) > closed(0.5, 1, 2, order=2)[1]


def test_the_factor_tends_to_one_doubly_exponentially():
    excess = [chi(0.9, 2, q, bound=True) - 1 for q in range(2, 5)]
    rates = [math.log(later) / math.log(earlier) for earlier, later in pairwise(excess)]
    assert rates == pytest.approx([3.0, 3.0], rel=0.4, abs=0.0)
    assert chi(0.9, 2, 6) == pytest.approx(1.0, rel=1e-15, abs=0.0)


def test_a_residual_next_to_one_keeps_its_digits_only_when_the_singular_value_is_given():
    sigma, q = 1e-9, 3
    assert chi(sigma_min=sigma, q=q, bound=True) == pytest.approx(closed(sigma, 2, q)[2], rel=1e-12, abs=0.0)
    assert chi(lambda_0=sigma**2, q=q) == pytest.approx(chi(sigma_min=sigma, q=q), rel=1e-12, abs=0.0)
    assert chi(sigma_min=sigma, q=q) == pytest.approx(1e9 / 1.875**3, rel=1e-9, abs=0.0)
