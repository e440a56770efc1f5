from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

from muonlab import newton_schulz
from muonlab.orthogonalize import PRESCALES, spectral_bound
from muonlab.orthogonalize.prescale import _exponent_from_bits, frobenius_norm, to_unit_range
from tests.orthogonalize.zoo import gaussian, with_spectrum, zoo


def test_every_prescale_but_none_lands_in_the_unit_ball():
    for prescale in set(PRESCALES) - {"none"}:
        for animal, M in zoo().items():
            if animal == "gaussian 511x513" and prescale != "spectral":
                continue
            X = newton_schulz(M, steps=0, prescale=prescale)
            assert float(torch.linalg.matrix_norm(X.double(), 2)) <= 1 + 4e-7, (prescale, animal)


def test_spectral_bound_never_falls_short_of_the_norm_and_is_tight():
    for animal, M in zoo().items():
        S = to_unit_range(M)[0]
        exact = float(torch.linalg.matrix_norm(S.double(), 2))
        bound = float(spectral_bound(S))
        assert bound >= exact, animal
        assert bound <= exact * (1 + 1e-9) + 1e-9, animal


def test_spectral_bound_never_falls_short_in_fifty_digits():
    for seed in range(5):
        M = gaussian(4, 7, seed=seed)
        with mpmath.workdps(50):
            sigma = mpmath.svd_r(mpmath.matrix(M.double().tolist()), compute_uv=False)
            assert mpmath.mpf(float(spectral_bound(M))) >= max(sigma)


def test_power_iteration_would_fall_short_where_the_bound_does_not():
    # two nearly equal singular values: a few power iterations stop below the norm, which the bound must not
    M = with_spectrum(40, 60, np.r_[1.0, 0.999, np.full(38, 0.99)])
    v = torch.ones(60, dtype=torch.float64)
    for _ in range(10):
        v = M.double().T @ (M.double() @ v)
        v /= v.norm()
    estimate = float((M.double() @ v).norm())
    exact = float(torch.linalg.matrix_norm(M.double(), 2))
    assert estimate < exact * (1 - 1e-4)
    assert float(spectral_bound(M)) >= exact


def test_spectral_bound_serves_batches_and_passes_nan_on():
    batch = torch.stack([gaussian(3, 5), torch.full((3, 5), float("nan")), torch.zeros(3, 5)])
    bounds = spectral_bound(batch)
    assert bounds.shape == (3,)
    assert bool(torch.isnan(bounds[1]))
    assert float(bounds[2]) == 0.0
    torch.testing.assert_close(bounds[0], spectral_bound(gaussian(3, 5)), atol=0, rtol=1e-14)


def test_higher_schatten_norms_scale_closer_to_the_operator_norm():
    M = gaussian(64, 64)
    tops = [
        float(torch.linalg.matrix_norm(newton_schulz(M, steps=0, prescale=p).double(), 2))
        for p in ("frobenius", "schatten4", "schatten8", "spectral")
    ]
    assert tops == sorted(tops)
    assert tops[-1] == pytest.approx(1.0, abs=1e-6)


def test_frobenius_norm_keeps_the_digits_that_one_long_sum_loses():
    for shape in [(700, 900), (1, 300_000), (300_000, 1), (3, 20_000)]:
        M = gaussian(*shape, seed=1)
        exact = float(M.double().norm())
        assert float(frobenius_norm(M)) == pytest.approx(exact, rel=5e-7)


def test_exponents_read_off_the_bits_are_those_of_frexp():
    bits = torch.randint(-(2**31), 2**31 - 1, (100_000,), generator=torch.Generator().manual_seed(0))
    powers = 2.0 ** torch.arange(-149, 128).double()
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, torch.finfo(torch.float32).max])
    x = torch.cat([bits.int().view(torch.float32), powers.float(), -powers.float(), special])
    assert torch.equal(_exponent_from_bits(x), torch.frexp(x).exponent)


def test_unit_range_is_exact_and_brings_the_largest_entry_to_between_a_half_and_one():
    for animal in ("x 1e30", "x 1e-30", "denormal", "largest float", "gaussian 16x40"):
        M = zoo()[animal]
        S, exponent = to_unit_range(M)
        assert 0.5 <= float(S.abs().max()) < 1 or animal in ("denormal", "largest float")
        assert torch.equal(S.double() * 2.0 ** int(exponent), M.double())


def test_spectral_bound_serves_every_range_and_empty_matrices():
    for factor in (1e-170, 1e170):
        M = gaussian(3, 5).double() * factor
        exact = float(torch.linalg.matrix_norm(M / factor, 2)) * factor
        assert exact <= float(spectral_bound(M)) <= exact * (1 + 1e-9)
    assert torch.equal(spectral_bound(torch.empty(2, 0, 5)), torch.zeros(2, dtype=torch.float64))


def test_double_precision_input_may_exceed_the_range_of_the_computation():
    for prescale in PRESCALES:
        M = gaussian(4, 6).double()
        M /= 2 * M.norm()
        expected = newton_schulz(M.float(), prescale="frobenius" if prescale in ("paper", "none") else prescale)
        factors = (1e50, 1e-60) if prescale not in ("paper", "none") else (1e50,) if prescale == "paper" else ()
        for factor in factors:
            O = newton_schulz(M * factor, compute_dtype=torch.float32, prescale=prescale)
            assert O.dtype == torch.float64
            torch.testing.assert_close(O.float(), expected, atol=1e-6, rtol=0)
        if prescale in ("paper", "none"):
            O = newton_schulz(M, compute_dtype=torch.float32, prescale=prescale, steps=0)
            torch.testing.assert_close(O, M, atol=1e-7, rtol=1e-6)


@pytest.mark.slow
def test_schatten_8_in_half_precision_serves_flat_spectra_of_many_rows():
    O = newton_schulz(torch.eye(1700).half(), steps=1, prescale="schatten8", compute_dtype=torch.float16)
    assert bool(torch.isfinite(O).all())
