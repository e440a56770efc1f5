"""Lemma 5: Young's inequality with weights 1/β and 1/(1-β) (Kim & Oh 2026, Lemma 5)."""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.paper.simulation import bowl, frobenius, sgdm

ENTRIES = st.lists(st.fractions(-10, 10, max_denominator=100), min_size=6, max_size=6)


def square(A):
    return sum(a * a for a in A)


def young(A, B, beta, first=lambda b: 1 / b, second=lambda b: 1 / (1 - b)):
    """Check ``‖A+B‖² ≤ first(β)‖A‖² + second(β)‖B‖²`` in rationals."""
    return square([a + b for a, b in zip(A, B, strict=True)]) <= first(beta) * square(A) + second(beta) * square(B)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(ENTRIES, ENTRIES, st.fractions(Fraction(1, 1000), Fraction(999, 1000)))
def test_it_holds_for_all_matrices_and_weights(A, B, beta):
    assert young(A, B, beta)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(ENTRIES, st.fractions(Fraction(1, 1000), Fraction(999, 1000)))
def test_parallel_matrices_attain_it_so_smaller_weights_fail(C, beta):
    A, B = [beta * c for c in C], [(1 - beta) * c for c in C]
    assert young(A, B, beta)
    if any(C):
        assert not young(A, B, beta, first=lambda b: Fraction(99, 100) / b)
        assert not young(A, B, beta, second=lambda b: Fraction(99, 100) / (1 - b))


def test_unit_weights_and_one_weight_for_both_are_rejected():
    beta = Fraction(3, 4)
    A, B = [beta] * 6, [1 - beta] * 6
    assert young(A, B, beta)
    assert not young(A, B, beta, first=lambda _: 1, second=lambda _: 1)
    assert not young(A, B, beta, first=lambda b: 1 / b, second=lambda b: 1 / b)
    assert not young(B, A, 1 - beta, first=lambda b: 1 / (1 - b))


def test_it_bounds_the_momentum_error_of_sgdm_step_by_step():
    """The use made of it in Theorem 3: ``E_t = β(E_{t-1} + ∇f(W_{t-2}) - ∇f(W_{t-1})) + (1-β)ξ_t`` without noise."""
    for beta in [0.3, 0.6, 0.9]:
        objective, start = bowl(3), np.random.default_rng(1).standard_normal((3, 3))
        eta = (1 - beta) ** 2
        history = sgdm(objective, start, eta=eta, beta=beta, T=30)
        W, gradients = start, []
        for M in history.momenta:
            gradients.append(objective.gradient(W))
            W = W - eta * M
        errors = [(1 - beta) * M - G for M, G in zip(history.momenta, gradients, strict=True)]
        for t in range(1, 30):
            moved = gradients[t - 1] - gradients[t]
            assert np.allclose(errors[t], beta * (errors[t - 1] + moved), rtol=1e-9, atol=1e-12)
            bound = beta * frobenius(errors[t - 1]) ** 2 + beta**2 / (1 - beta) * frobenius(moved) ** 2
            assert frobenius(errors[t]) ** 2 <= bound * (1 + 1e-9) + 1e-15
