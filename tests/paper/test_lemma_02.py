"""Lemma 2: one step maps the residual δ to φ(δ) = 1 - τ(1 - δ) (Kim & Oh 2026, Lemma 2)."""

import math
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muonlab.polynomials import preset, taylor
from muonlab.polynomials.taylor_polynomial import central, phi_closed_form
from muonlab.theory import residual_after
from tests.paper.simulation import by_newton_schulz, observed_residual, singular, with_spectrum


def naive_phi(kappa, u, power=2):
    """``1 - (1-u)[Σ c_s u^s]^power``, by the definition and in rationals."""
    return 1 - (1 - u) * sum(central(s) * u**s for s in range(kappa + 1)) ** power


def updates_by_phi(before, after, kappa, power=2):
    """Check ``δ_{j+1} = φ(δ_j)`` on measured residuals."""
    return math.isclose(after, float(naive_phi(kappa, Fraction(before), power)), rel_tol=1e-8, abs_tol=1e-12)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.integers(1, 10), st.fractions(0, 1, max_denominator=10**6))
def test_phi_is_one_minus_tau_exactly(kappa, u):
    p = taylor(kappa)
    assert p.phi(u) == naive_phi(kappa, u) == 1 - p.tau(1 - u)
    assert sum(c * u**k for k, c in enumerate(phi_closed_form(kappa))) == p.phi(u)


def test_the_first_power_of_p_is_rejected():
    u = Fraction(1, 2)
    assert taylor(2).phi(u) != naive_phi(2, u, power=1)
    assert taylor(2).phi(u) != naive_phi(2, u, power=3)


def test_the_residual_of_a_matrix_is_updated_by_phi_in_every_step():
    for kappa, shape in product([1, 2, 3, 5], [(4, 4), (3, 6), (6, 3)]):
        rng = np.random.default_rng([kappa, *shape])
        M = with_spectrum(rng, rng.uniform(0.05, 1.0, 3), *shape)
        residuals = [observed_residual(M, by_newton_schulz(taylor(kappa), j, "frobenius")(M)) for j in range(5)]
        for before, after in pairwise(residuals):
            assert updates_by_phi(before, after, kappa)


def test_the_map_of_another_degree_is_rejected():
    M = np.diag([1.0, 0.3])
    before, after = (observed_residual(M, by_newton_schulz(taylor(2), j, "frobenius")(M)) for j in (0, 1))
    assert updates_by_phi(before, after, 2)
    assert not updates_by_phi(before, after, 1)
    assert not updates_by_phi(before, after, 3)
    assert not updates_by_phi(before, after, 2, power=1)


def test_without_a_monotone_tau_the_least_eigenvalue_does_not_carry_the_residual():
    p = preset("jordan").polynomial
    M = np.diag([1.0, 0.55])
    X = by_newton_schulz(p, 1, "none")(M)
    from_least = 1 - p.tau(singular(M)[-1] ** 2)
    assert not math.isclose(observed_residual(M, X), abs(from_least), rel_tol=1e-2, abs_tol=0.0)
    Y = by_newton_schulz(taylor(2), 1, "none")(M)
    assert math.isclose(observed_residual(M, Y), taylor(2).phi(1 - 0.55**2), rel_tol=1e-9, abs_tol=0.0)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.integers(1, 4), st.integers(0, 4), st.floats(0.0, 0.96875))
def test_library_iterates_phi_like_exact_rationals(kappa, q, delta_0):
    exact = Fraction(delta_0)
    for _ in range(q):
        exact = Fraction(round(naive_phi(kappa, exact) * 2**1200), 2**1200)
    assert residual_after(delta_0, kappa, q) == pytest.approx(float(exact), rel=1e-12 * 4**q, abs=1e-300)
