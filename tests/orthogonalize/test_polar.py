from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from muonlab import newton_schulz, polar
from muonlab.orthogonalize import POLAR_METHODS
from muonlab.polynomials import taylor
from tests.orthogonalize.zoo import gaussian, with_spectrum, zoo
from tests.reference.orthogonalize import operator_error


def svd_polar(M: torch.Tensor, tol: float | None = None) -> torch.Tensor:
    """Return the polar factor on the range, by a float64 SVD and the documented default tolerance."""
    U, sigma, Vh = torch.linalg.svd(M.double(), full_matrices=False)
    if tol is None:
        eps = torch.finfo(torch.float64 if M.dtype == torch.float64 else torch.float32).eps
        tol = max(M.shape[-2:]) * eps * float(sigma.max())
    return (U * (sigma > tol)) @ Vh


def singular_values_clear_of_the_tolerance(M: torch.Tensor) -> bool:
    sigma = torch.linalg.svdvals(M.double())
    relative = sigma / sigma.max()
    tol = max(M.shape) * torch.finfo(torch.float32).eps
    return bool(((relative < tol / 30) | (relative > tol * 30)).all())


def test_polar_factor_matches_the_svd_on_every_specimen_of_clear_rank():
    for method in POLAR_METHODS:
        tried = 0
        for animal, M in zoo().items():
            if M.numel() > 200_000 or float(M.abs().max()) == 0 or not singular_values_clear_of_the_tolerance(M):
                continue
            tried += 1
            smallest = torch.linalg.svdvals(M.double() / M.double().abs().max())
            smallest = smallest[smallest > smallest.max() * max(M.shape) * 1.2e-7].min() / smallest.max()
            # directions of small singular values are known only as well as float32 data and an SVD in float32 allow
            allowed = 1e-5 if method == "gram" else 4e-6 / float(smallest)
            assert operator_error(polar(M, method=method), svd_polar(M)) <= max(allowed, 1e-5), animal
        assert tried >= 40


def test_a_rank_deficient_matrix_gives_a_partial_isometry_on_its_range():
    for method, shape in product(POLAR_METHODS, [(20, 30), (30, 20), (12, 12)]):
        M = with_spectrum(*shape, [3.0, 2.0, 0.5])
        P = polar(M, method=method).double()
        sigma = torch.linalg.svdvals(P)
        torch.testing.assert_close(sigma[:3], torch.ones(3, dtype=torch.float64), atol=1e-6, rtol=0)
        assert float(sigma[3]) < 1e-6
        inner = float((P * M.double()).sum())
        assert inner == pytest.approx(5.5, rel=1e-6)  # ⟨M, polar(M)⟩ = ‖M‖_*


def test_zero_gives_zero_and_empty_gives_empty():
    for method in POLAR_METHODS:
        assert torch.equal(polar(torch.zeros(3, 4), method=method), torch.zeros(3, 4))
        for shape in ((0, 4), (4, 0), (0, 2, 3)):
            assert polar(torch.empty(shape), method=method).shape == shape


def test_a_batch_gets_bit_for_bit_what_each_matrix_gets_alone():
    for method in POLAR_METHODS:
        batch = torch.randn(2, 3, 17, 11, generator=torch.Generator().manual_seed(0))
        together = polar(batch, method=method)
        assert torch.equal(
            together.flatten(0, 1), torch.stack([polar(M.clone(), method=method) for M in batch.flatten(0, 1)])
        )


def test_the_gram_route_keeps_float32_accuracy_down_to_its_tolerance():
    for m in (8, 64, 200):
        floor = 40 * m * torch.finfo(torch.float32).eps
        M = with_spectrum(m, 2 * m, np.geomspace(1, floor, m))
        P = polar(M, method="gram")
        gram = P.double() @ P.double().T
        torch.testing.assert_close(gram, torch.eye(m, dtype=torch.float64), atol=1e-6, rtol=0)
        assert float((P.double() * M.double()).sum()) == pytest.approx(
            float(torch.linalg.svdvals(M.double()).sum()), rel=1e-6
        )


def test_a_wrong_tolerance_would_change_the_rank():
    M = with_spectrum(6, 9, [1.0, 0.1, 1e-3])
    assert round(float(polar(M).norm() ** 2)) == 3
    assert round(float(polar(M, rank_tol=0.01).norm() ** 2)) == 2
    assert round(float(polar(M, rank_tol=0.5).norm() ** 2)) == 1
    assert round(float(polar(M, rank_tol=2.0).norm() ** 2)) == 0


def test_float64_is_exact_to_its_own_precision():
    M = gaussian(20, 30).double()
    torch.testing.assert_close(polar(M), svd_polar(M), atol=1e-13, rtol=0)


def test_half_precision_inputs_use_the_tolerance_of_float32():
    for dtype in [torch.bfloat16, torch.float16]:
        M = gaussian(64, 300).to(dtype)  # with the eps of bfloat16 the tolerance would exceed every singular value
        P = polar(M)
        assert P.dtype == dtype
        assert float(P.float().norm() ** 2) == pytest.approx(64, rel=1e-2)


def test_scaling_by_a_power_of_two_changes_nothing_that_matters():
    for method in POLAR_METHODS:
        M = gaussian(10, 20)
        for exponent in (-100, 100):
            torch.testing.assert_close(
                polar(M * 2.0**exponent, method=method), polar(M, method=method), atol=1e-6, rtol=0
            )


def test_nan_stays_in_its_own_matrix():
    for method in POLAR_METHODS:
        batch = torch.stack([gaussian(4, 6, seed=1), gaussian(4, 6, seed=2)])
        clean = polar(batch, method=method)
        batch[1, 0, 0] = float("inf")
        P = polar(batch, method=method)
        assert bool(torch.isnan(P[1]).all())
        assert torch.equal(P[0], clean[0])
        with pytest.raises(ValueError, match="must be finite"):
            polar(batch, method=method, check_finite=True)


def test_inputs_are_neither_changed_nor_aliased():
    M = gaussian(5, 8).requires_grad_()
    before = M.detach().clone()
    P = polar(M)
    assert torch.equal(M.detach(), before)
    assert not P.requires_grad
    assert P.data_ptr() != M.data_ptr()


def test_newton_schulz_converges_to_the_polar_factor():
    M = with_spectrum(16, 40, np.geomspace(1, 0.05, 16))
    torch.testing.assert_close(newton_schulz(M, taylor(2), steps=12), polar(M), atol=2e-5, rtol=0)


def test_the_gram_route_is_refused_where_squaring_loses_too_much():
    with pytest.raises(ValueError, match=r"serves float32 and below.*use method 'svd' or 'auto'"):
        polar(gaussian(3, 3).double(), method="gram")
    with pytest.raises(ValueError, match=r"rank_tol = 0.1.*use method 'svd' or 'auto'"):
        polar(gaussian(3, 3), method="gram", rank_tol=0.1)
