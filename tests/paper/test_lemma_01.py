"""Lemma 1: δ = 1 - λ_min⁺ and ε = 1 - √(1 - δ) for Taylor steps (Kim & Oh 2026, Lemma 1)."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muonlab.polynomials import preset, taylor
from muonlab.theory import chi, polar_error, residual_after
from tests.paper.simulation import (
    by_newton_schulz,
    observed_error,
    observed_residual,
    operator,
    singular,
    with_spectrum,
)


def linked(delta, epsilon, power=0.5, sign=-1):
    """Check ``ε = 1 - (1 + sign·δ)^power``."""
    return math.isclose(epsilon, 1 - (1 + sign * delta) ** power, rel_tol=1e-9, abs_tol=1e-13)


def test_residual_and_error_of_a_matrix_are_linked_through_the_least_singular_value():
    for shape, rank, q in product([(4, 4), (3, 8), (8, 3)], [1, 2, 3], [0, 1, 2]):
        rng = np.random.default_rng([*shape, rank, q])
        M = with_spectrum(rng, rng.uniform(0.1, 1.0, rank), *shape)
        X = by_newton_schulz(taylor(2), q, "frobenius")(M)
        delta, epsilon = observed_residual(M, X), observed_error(M, X)
        least = singular(X)[rank - 1]
        assert delta == pytest.approx(1 - least**2, rel=1e-10, abs=1e-12)
        assert epsilon == pytest.approx(1 - least, rel=1e-10, abs=1e-12)
        assert linked(delta, epsilon)


def test_another_power_or_sign_in_the_link_is_rejected():
    M = with_spectrum(np.random.default_rng(1), [1.0, 0.5], 3, 4)
    X = by_newton_schulz(taylor(1), 1, "frobenius")(M)
    delta, epsilon = observed_residual(M, X), observed_error(M, X)
    assert linked(delta, epsilon)
    assert not linked(delta, epsilon, power=1.0)
    assert not linked(delta, epsilon, power=0.25)
    assert not linked(delta, epsilon, sign=1)


def test_the_link_fails_for_singular_values_above_one():
    M = np.diag([0.55, 0.52])
    X = by_newton_schulz(preset("jordan").polynomial, 1, "none")(M)
    assert operator(X) > 1.0
    assert not linked(observed_residual(M, X), observed_error(M, X))


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.floats(0.0, 0.999), st.integers(1, 4), st.integers(0, 3))
def test_library_links_its_own_residual_and_error(delta_0, kappa, q):
    delta, epsilon = residual_after(delta_0, kappa, q), polar_error(delta_0, kappa, q)
    assert linked(delta, epsilon)
    assert chi(delta_0, kappa, q) == pytest.approx(1 / (1 - epsilon), rel=1e-12, abs=0.0)
