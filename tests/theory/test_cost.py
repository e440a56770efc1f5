"""Operation counts and the wall-clock ratio (Lemma 11)."""

import math
from itertools import product

import pytest

from muonlab.theory import flops, wall_clock_ratio
from muonlab.theory.cost import block_size, gram_products, products

SHAPES = [(1, 1), (64, 64), (64, 97), (128, 1000), (768, 3072)]


def count_products(kappa, block):
    """Matrix products of a blockwise evaluation of a degree-κ polynomial, counted one by one."""
    powers = max(block - 1, 0)  # U², …, U^block
    blocks = [range(k, min(k + block, kappa + 1)) for k in range(0, kappa + 1, block)]
    if len(blocks) > 1 and len(blocks[-1]) == 1:  # a lone leading coefficient is a scaling, no product
        return powers + len(blocks) - 2
    return powers + len(blocks) - 1


def test_zero_steps_cost_nothing():
    for method in ["standard", "gram", "horner"]:
        assert flops(100, 200, method, 2, 0) == 0


def test_a_matrix_and_its_transpose_cost_the_same():
    for method in ["standard", "gram", "horner", "svd", "svd_full"]:
        assert flops(300, 70, method) == flops(70, 300, method)


def test_a_single_step_costs_the_same_in_both_forms():
    for m, n in SHAPES:
        assert flops(m, n, "gram", 2, 1) == flops(m, n, "standard", 2, 1)


def test_no_block_size_needs_fewer_products():
    for kappa in range(1, 40):
        counts = [count_products(kappa, s) for s in range(1, kappa + 1)]
        assert products(kappa) == min(counts)
        assert count_products(kappa, block_size(kappa)) == min(counts)


def test_gram_products_count_each_step_and_what_joins_them():
    for kappa, q in product([1, 2, 3, 6], [0, 1, 2, 7]):
        counted = 0
        for step in range(q):
            counted += products(kappa)
            if step > 0:
                counted += 1  # Q ← Q p
            if step < q - 1:
                counted += 2  # R ← p R p
        assert gram_products(kappa, q) == counted


def test_flops_refuses_bad_arguments():
    for arguments, error, message in [
        ((-1, 5), ValueError, r"m must be at least 0, got -1: pass 0 or more"),
        ((5, 2.0), TypeError, r"n must be an integer, got 2\.0 of type float: pass a whole number"),
        ((5, 5, "lu"), ValueError, r"method must be one of 'standard', 'gram', 'horner', 'svd', 'svd_full', got 'lu'"),
        ((5, 5, "gram", 0), ValueError, r"kappa must be at least 1, got 0: pass 1 or more"),
        ((5, 5, "gram", 2, -1), ValueError, r"q must be at least 0, got -1: pass 0 or more"),
        ((5, 5, "gram", 2, True), TypeError, r"q must be an integer, got True: pass 1"),
    ]:
        with pytest.raises(error, match=message):
            flops(*arguments)


def test_the_ratio_refuses_what_has_no_time():
    for changes, error, message in [
        ({"q": 0}, ValueError, r"q must be at least 1, got 0: pass 1 or more"),
        ({"m": 0}, ValueError, r"m must be at least 1, got 0"),
        ({"gemm_throughput": 0.0}, ValueError, r"gemm_throughput must be a finite number in \(0, inf\), got 0\.0"),
        ({"svd_throughput": -1.0}, ValueError, r"svd_throughput must be a finite number in \(0, inf\), got -1\.0"),
        ({"svd_throughput": math.nan}, ValueError, r"svd_throughput must be a finite number in \(0, inf\), got nan"),
        ({"svd_throughput": "1"}, TypeError, r"svd_throughput must be a real number, got '1' of type str"),
    ]:
        arguments = {"m": 4, "n": 8, "gemm_throughput": 1.0, "svd_throughput": 1.0, **changes}
        with pytest.raises(error, match=message):
            wall_clock_ratio(**arguments)
