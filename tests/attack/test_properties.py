"""Properties of newton_schulz, polar and a Muon step on generated matrices: shapes 0 to 256, dtypes, strides, spectra.

Finite; inputs untouched; the same bits for a power of two times the matrix; the transpose of the result for the
transpose; a batch gives what its members give. ``make soak`` runs 10,200 examples, ``make test`` 240.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muonlab import Muon, NewtonSchulz, newton_schulz, polar

SIZES = st.one_of(st.integers(0, 8), st.integers(0, 8), st.integers(9, 40), st.integers(0, 256))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ROUNDING = {torch.float32: 2e-4, torch.float64: 1e-10, torch.bfloat16: 0.04, torch.float16: 0.01}
"""Largest difference between results whose sums are rounded in another order."""
COUNTS = [80, pytest.param(3_400, marks=pytest.mark.slow)]


@st.composite
def matrices(draw):
    """Draw a batch of one to three matrices with a spectrum, a scale and strides."""
    rows, columns, batch = draw(SIZES), draw(SIZES), draw(st.sampled_from((1, 1, 2, 3)))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    G = torch.randn(batch, rows, columns, generator=generator, dtype=torch.float64)
    spectrum, rank = (
        draw(st.sampled_from(("gaussian", "decaying", "low rank", "zero", "tiny", "one"))),
        min(rows, columns),
    )
    if rank and spectrum in ("decaying", "low rank", "one"):
        U, _, V = torch.linalg.svd(G, full_matrices=False)
        places = torch.arange(rank, dtype=torch.float64)
        values = {
            "decaying": 10.0 ** (-4 * places / rank),
            "low rank": (places < 1 + rank // 4).double(),
            "one": places * 0 + 1,
        }
        G = (U * values[spectrum]) @ V
    G = G * {"zero": 0.0, "tiny": 2.0**-10}.get(spectrum, 1.0)
    G = G.to(dtype)
    strides = draw(st.sampled_from(("plain", "transposed", "sliced", "padded")))
    if strides == "transposed":
        return G.mT.contiguous().mT
    if strides == "sliced":
        wide = torch.zeros(batch, rows, 2 * columns, dtype=dtype)
        wide[..., ::2] = G
        return wide[..., ::2]
    if strides == "padded":
        wide = torch.zeros(batch, rows + 1, columns + 3, dtype=dtype)
        wide[:, 1:, 3:] = G
        return wide[:, 1:, 3:]
    return G


def close(A, B):
    assert A.shape == B.shape
    if A.numel():
        assert float((A.double() - B.double()).abs().max()) <= ROUNDING[A.dtype]


def times(M, factor):
    """Return a multiple in memory of the same strides and alignment, on which the last bit of a product may depend."""
    copy = torch.empty(0, dtype=M.dtype).set_(M.untyped_storage().clone(), M.storage_offset(), M.shape, M.stride())
    return copy.mul_(factor)


def check(function, M, exponent, *, transposes=True):
    """Check all properties of a function of a batch of matrices."""
    before = M.clone()
    result = function(M)
    assert torch.equal(M, before)
    assert result.shape == M.shape
    assert result.dtype == M.dtype
    assert bool(result.isfinite().all())
    scaled = times(M, 2.0**exponent)
    if torch.equal(scaled * 2.0**-exponent, M):  # no entry has left the range of the dtype
        assert torch.equal(function(scaled), result)
    for member, expected in zip(M, result, strict=True):
        close(function(member), expected)
    if transposes:
        close(function(M.mT).mT, result)


def examples(count):
    """Return the decorator that runs a property on so many matrices, the same ones every time."""
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    run = settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=quiet)
    return lambda function: run(given(matrices(), st.integers(-8, 8))(function))


@pytest.mark.parametrize("count", COUNTS)
def test_newton_schulz(count):
    examples(count)(lambda M, exponent: check(newton_schulz, M, exponent))()


@pytest.mark.parametrize("count", COUNTS)
def test_polar(count):
    def decided(M):
        """Whether no singular value is within rounding of the rank tolerance, where one bit decides."""
        if not min(M.shape[-2:]):
            return True
        values = torch.linalg.svdvals(M.double())
        ratio = values / values[..., :1].clamp_min(1e-300)
        return bool(((ratio > 1e-2) | (ratio < 1e-12)).all())

    def property_(M, exponent):
        if decided(M):
            check(polar, M, exponent)
        else:
            assert bool(polar(M).isfinite().all())

    examples(count)(property_)()


@pytest.mark.parametrize("count", COUNTS)
def test_one_muon_step(count):
    def step(M):
        """Return the update of weights that are zero; the gradient is the matrix."""
        W = torch.nn.Parameter(torch.zeros(M.shape, dtype=M.dtype))
        W.grad = M.clone()
        view = "batch" if M.ndim == 3 else "flatten"
        options = {
            "momentum": 0.0,
            "scale": "none",
            "weight_decay": 0.0,
            "orthogonalizer": NewtonSchulz("quintic", steps=3),
        }
        Muon([{"params": [W], "matrix_view": view}], lr=1.0, nesterov=False, **options).step()
        return W.detach()

    examples(count)(lambda M, exponent: check(step, M, exponent))()
