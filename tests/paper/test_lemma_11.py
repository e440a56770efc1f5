"""Lemma 11: operations of an SVD and of q steps, and the ratio of their times (Kim & Oh 2026, Lemma 11)."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from muonlab.polynomials import taylor
from muonlab.theory import flops, wall_clock_ratio

SHAPES = [(4, 4), (8, 32), (768, 3072), (32, 8), (100, 101)]


class Counter:
    """Multiplies matrices and counts two operations per scalar product."""

    def __init__(self):
        self.total = 0

    def __call__(self, A, B):
        self.total += 2 * A.shape[0] * A.shape[1] * B.shape[1]
        return A @ B


def horner_operations(m, n, kappa, q):
    """Count a naive implementation of the paper's scheme: ``A = X Xᵀ``, then κ products ``A·Y``."""
    multiply, X = Counter(), np.random.default_rng(0).standard_normal((m, n)) / (m * n)
    a = taylor(kappa).coefficients
    for _ in range(q):
        A = multiply(X, X.T)
        Y = a[-1] * X
        for c in a[-2::-1]:
            Y = multiply(A, Y) + c * X
        X = Y
    return multiply.total


def ratio_holds(m, n, kappa, q, gemm, svd, degree=1, slope=4):
    """Check ``t_svd/t_ns = (2 + slope·m/n)/(q(κ+degree))·Φ_gemm/Φ_svd`` for m ≤ n."""
    factor = (2 + slope * Fraction(min(m, n), max(m, n))) / (q * (kappa + degree))
    found = wall_clock_ratio(m, n, kappa=kappa, q=q, gemm_throughput=gemm, svd_throughput=svd)
    return math.isclose(found, float(factor) * gemm / svd, rel_tol=1e-12, abs_tol=0.0)


def test_the_papers_count_is_what_a_naive_horner_scheme_performs():
    for (m, n), kappa, q in product([(3, 3), (3, 8), (8, 3), (5, 20)], [1, 2, 4], [1, 2, 5]):
        assert flops(m, n, "horner", kappa, q) == horner_operations(min(m, n), max(m, n), kappa, q)
        assert flops(m, n, "horner", kappa, q) != horner_operations(min(m, n), max(m, n), kappa + 1, q)


def test_the_counts_of_an_svd_are_the_printed_and_the_full_one():
    for m, n in SHAPES:
        a, b = sorted((m, n))
        assert flops(m, n, "svd") == 4 * a * a * b + 8 * a**3
        assert flops(m, n, "svd_full") == 8 * a * a * b + 20 * a**3


def test_the_ratio_of_times_is_the_lemmas():
    for (m, n), kappa, q in product(SHAPES, [1, 2], [1, 3]):
        assert ratio_holds(m, n, kappa, q, gemm=9e11, svd=1e11)


def test_another_degree_slope_or_the_inverse_throughput_is_rejected():
    assert not ratio_holds(64, 128, 2, 3, gemm=9e11, svd=1e11, degree=0)
    assert not ratio_holds(64, 128, 2, 3, gemm=9e11, svd=1e11, degree=2)
    assert not ratio_holds(64, 128, 2, 3, gemm=9e11, svd=1e11, slope=2)
    found = wall_clock_ratio(64, 128, gemm_throughput=9e11, svd_throughput=1e11)
    assert found != pytest.approx(wall_clock_ratio(64, 128, gemm_throughput=1e11, svd_throughput=9e11), rel=0.5, abs=0)


def test_the_algebraic_factor_spans_a_wider_range_than_printed():
    """Printed as "0.3 to 1"; over q ∈ {2, 3}, κ ∈ {1, 2} and all shapes it runs from 2/9 to 3/2."""
    factors = [
        wall_clock_ratio(m, 10**6, kappa=kappa, q=q, gemm_throughput=1.0, svd_throughput=1.0)
        for m in (1, 10**6)
        for kappa in (1, 2)
        for q in (2, 3)
    ]
    assert min(factors) == pytest.approx(2 / 9, rel=1e-4, abs=0.0)
    assert max(factors) == pytest.approx(1.5, rel=1e-12, abs=0.0)


def test_gram_space_needs_fewer_operations_exactly_beyond_one_and_a_half_times_wider():
    for q in [2, 3, 5, 8]:
        m = 64
        assert flops(m, 97, "gram", 2, q) < flops(m, 97, "standard", 2, q)
        assert flops(m, 96, "gram", 2, q) == flops(m, 96, "standard", 2, q)
        assert flops(m, 95, "gram", 2, q) > flops(m, 95, "standard", 2, q)
        assert flops(m, 200, "gram", 2, q) == 4 * m * m * 200 + (4 * q - 3) * 2 * m**3
        assert flops(m, 200, "standard", 2, q) == q * (4 * m * m * 200 + 2 * m**3)
