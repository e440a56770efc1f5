"""Spectra and responses against an SVD in float64, on every specimen of the zoo."""

import math

import numpy as np
import pytest
import torch

from muonlab import newton_schulz, polar
from muonlab.diagnostics.matrix_spectra import (
    alignment_of,
    by_definition,
    inner,
    operator_norm,
    range_residual,
    respond,
    spectra,
    spectrum,
    taylor_degree,
)
from muonlab.orthogonalize.prescale import PRESCALES, wide_gram
from muonlab.polynomials import Polynomial, Schedule, preset, taylor
from tests.orthogonalize.zoo import gaussian, with_spectrum, zoo
from tests.paper.simulation import observed_error, observed_residual, svd_polar
from tests.reference.orthogonalize import operator_error, scale_of, schedule_on_singular_values

JORDAN, EXPRESS = preset("jordan").schedule(5), preset("polar_express").schedule(5, safety="1.01")
SCHEDULES = {
    **{f"taylor{k} x{q}": Schedule.repeat(taylor(k), q) for k in (1, 2, 3) for q in (0, 1, 2, 6)},
    "jordan x5": JORDAN,
    "polar_express x5": EXPRESS,
    "mixed degrees": Schedule((taylor(1), taylor(2), taylor(3))),
    "express then taylor": EXPRESS + Schedule.repeat(taylor(2), 2),
}
LARGE = ("a long row", "few long rows", "gaussian 511x513")
SMALL = [name for name in zoo() if name not in LARGE]


def oracle(M):
    """Singular values by numpy in float64, of a matrix brought to unit size by an exact power of two."""
    A = M.detach().double().numpy()
    power = 2.0 ** np.frexp(np.abs(A).max(initial=0.0))[1] if A.size else 1.0
    return np.linalg.svd(A / power, compute_uv=False) * power


def tolerance_of(M, sigma):
    eps = torch.finfo(torch.float64 if M.dtype == torch.float64 else torch.float32).eps
    return max(M.shape) * eps * sigma[0]


# -------------------------------------------------------------------------------------------------- singular values


@pytest.mark.parametrize("method", ["auto", "svd"])
def test_values_norms_and_ranks_are_those_of_an_svd(method):
    for M in zoo().values():
        check_spectrum(M, method)


def check_spectrum(M, method):
    of, sigma = spectrum(M, method=method), oracle(M)
    assert of.shape == tuple(M.shape)
    assert of.values.dtype == np.float64
    assert np.all(np.diff(of.values) <= 0)
    # eigenvalues of a Gram matrix: "an error of about 1e-8 of the largest"
    assert np.max(np.abs(of.values - sigma)) <= (3e-8 if method == "auto" else 1e-13) * sigma[0]
    assert of.operator == pytest.approx(sigma[0], rel=1e-12)
    assert of.frobenius == pytest.approx(np.linalg.norm(sigma / (sigma[0] or 1)) * sigma[0], rel=1e-12)
    assert of.nuclear == pytest.approx(np.sum(sigma), rel=3e-8 * len(sigma))
    limit = tolerance_of(M, sigma)
    assert np.sum(sigma > 1.5 * limit) <= of.rank <= np.sum(sigma > 0.5 * limit)
    share = sigma[sigma > limit] / np.sum(sigma[sigma > limit]) if sigma[0] else np.array([])
    expected = math.exp(-np.sum(share * np.log(share))) if share.size else 0.0
    assert of.effective_rank == pytest.approx(expected, rel=1e-4)
    assert of.effective_rank <= of.rank + 1e-9


def test_small_values_of_float64_keep_their_digits_at_any_scale():
    sigma = np.geomspace(1, 1e-12, 8)
    rng = np.random.default_rng(0)
    Q, P = (np.linalg.qr(rng.standard_normal((8, 8)))[0] for _ in range(2))
    for scale in (1.0, 1e200, 1e-200):
        of = spectrum(torch.from_numpy((Q * sigma) @ P.T * scale))
        assert of.values / scale == pytest.approx(sigma, rel=1e-3)
        assert of.rank == 8
        assert of.frobenius == pytest.approx(scale * np.linalg.norm(sigma), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(16, 40), (40, 16)])
def test_every_dtype_is_measured_at_its_own_value(dtype, shape):
    M = gaussian(*shape).to(dtype)
    assert spectrum(M).values == pytest.approx(oracle(M), rel=1e-9)
    assert spectrum(M).rank == 16


def test_a_batch_gives_each_of_its_matrices():
    stack = torch.stack([gaussian(5, 9, seed=k) * 10.0**k for k in range(6)])
    found = spectra(stack.reshape(2, 3, 5, 9))
    assert len(found) == 6
    for one, M in zip(found, stack, strict=True):
        assert one.values == pytest.approx(spectrum(M).values, rel=1e-13)  # BLAS rounds batches differently
    assert len(spectra(gaussian(3, 3))) == 1
    assert spectra(torch.zeros(0, 3, 4)) == ()
    assert [x.rank for x in spectra(torch.zeros(2, 0, 3))] == [0, 0]


def test_one_matrix_that_is_not_finite_leaves_the_others_alone():
    stack = torch.stack([gaussian(4, 6), torch.full((4, 6), math.nan), torch.full((4, 6), math.inf), gaussian(4, 6)])
    found = spectra(stack)
    assert [x.finite for x in found] == [True, False, False, True]
    assert np.all(np.isnan(found[1].values))
    for k in (0, 3):
        assert found[k].values == pytest.approx(oracle(stack[k]), rel=1e-9)
    assert math.isnan(found[2].nuclear)
    assert math.isnan(respond(found[1], JORDAN).alignment)
    assert math.isnan(respond(found[1], None).delta)


def test_a_rank_tolerance_is_taken_as_given():
    M = torch.diag(torch.tensor([4.0, 2.0, 1.0]))
    assert [spectrum(M, rank_tol=t).rank for t in (0.0, 1.0, 1.5, 4.0)] == [3, 2, 2, 0]
    assert spectrum(M, rank_tol=1.5).support.tolist() == [4.0, 2.0]


def test_nothing_given_is_changed_and_no_random_number_drawn():
    M = gaussian(40, 90)[::2, 1::3].requires_grad_(True)
    before, state = M.detach().clone(), torch.get_rng_state()
    of = spectrum(M)
    respond(of, JORDAN)
    alignment_of(M, M)
    by_definition(M, JORDAN, "frobenius")
    assert torch.equal(M.detach(), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert M.grad is None


@pytest.mark.parametrize("shape", [(3, 5), (7, 300), (70, 200), (2, 7, 300)])
def test_the_wide_gram_matrix_is_the_product_in_float64(shape):
    S = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    expected = S.double() @ S.double().mT
    assert wide_gram(S).dtype == torch.float64
    torch.testing.assert_close(wide_gram(S), expected, rtol=0, atol=1e-12 * float(expected.abs().max()))


def test_the_scale_is_that_of_the_prescale():
    for name in SMALL:
        M = zoo()[name]
        for prescale in PRESCALES:
            expected = scale_of(torch.from_numpy(oracle(M)), prescale, M)
            assert spectrum(M).scale(prescale) == pytest.approx(expected, rel=1e-10), (name, prescale)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: spectrum(torch.zeros(3)), ValueError, r"M must have at least two dimensions .*got shape \(3,\): resh"),
        (
            lambda: spectrum(torch.zeros(2, 3, 4)),
            ValueError,
            r"one matrix \(m, n\), got shape \(2, 3, 4\): use spectra",
        ),
        (lambda: spectrum(np.eye(2)), TypeError, r"M must be a torch\.Tensor, got ndarray: use torch\.as_tensor"),
        (lambda: spectra(torch.eye(2, dtype=torch.int64)), TypeError, r"got torch\.int64: use M\.float"),
        (
            lambda: spectra(torch.eye(2), method="qr"),
            ValueError,
            r"method must be one of 'auto', 'svd', 'gram', got 'qr'",
        ),
        (
            lambda: spectra(torch.eye(2).double(), method="gram"),
            ValueError,
            r"float32 and below, got float64: use 'svd'",
        ),
        (lambda: spectra(torch.eye(2), rank_tol=-1.0), ValueError, r"rank_tol must be a finite number in \[0, inf\)"),
        (lambda: spectrum(torch.eye(2)).scale("l1"), ValueError, r"prescale must be one of .*got 'l1': pick one"),
        (lambda: alignment_of(torch.eye(2), torch.eye(3)), ValueError, r"of one shape, got \(2, 2\) and \(3, 3\)"),
    ],
)
def test_bad_arguments_are_refused_by_rule_value_and_way_out(call, error, message):
    with pytest.raises(error, match=message):
        call()


# ------------------------------------------------------------------------------------------------------- responses


def small_float64():
    """Specimens in float64 whose ranges are clear, so that matrices of Definition 3 can be formed."""
    for name in SMALL:
        M = zoo()[name].double()
        sigma = oracle(M)
        if sigma[0] and M.numel() < 4000 and sigma[sigma > 1e-6 * sigma[0]][-1] > 1e-5 * sigma[0]:
            U, values, Vh = torch.linalg.svd(M / 2.0 ** float(np.frexp(sigma[0])[1]), full_matrices=False)
            yield name, (U * torch.where(values > 1e-6 * values[0], values, 0.0)) @ Vh  # without float32's noise


@pytest.mark.parametrize("prescale", ["frobenius", "spectral"])
@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if "x1" not in name and "x0" not in name])
def test_residuals_and_polar_error_are_those_of_the_matrices_themselves(schedule, prescale):
    # Definition 3 on iterates that an SVD forms, with projectors: no use of the smallest singular value
    F, seen = SCHEDULES[schedule], 0
    for name, M in list(small_float64())[::3]:
        found = respond(spectrum(M), F, prescale)
        assert len(found.deltas) == F.steps + 1
        for j in sorted({0, 1, F.steps} & set(range(F.steps + 1))):
            X = schedule_on_singular_values(M, Schedule(F.polynomials[:j]), prescale).numpy()
            assert found.deltas[j] == pytest.approx(observed_residual(M.numpy(), X), abs=1e-9), name
        assert found.epsilon == pytest.approx(observed_error(M.numpy(), X), abs=1e-9), name
        assert found.chi == pytest.approx(1 / (1 - found.epsilon)) if found.epsilon < 1 else found.chi == math.inf
        seen += 1
    assert seen >= 10


@pytest.mark.parametrize(
    ("schedule", "prescale"),
    [
        ("polar_express x5", "frobenius"),
        ("taylor1 x6", "paper"),
        ("taylor2 x2", "schatten4"),
        ("jordan x5", "schatten8"),
        ("mixed degrees", "spectral"),
    ],
)
def test_descent_gain_and_alignment_are_those_of_the_direction_on_the_whole_zoo(schedule, prescale):
    F = SCHEDULES[schedule]
    for name in SMALL:
        M = zoo()[name]
        found = respond(spectrum(M), F, prescale)
        O = newton_schulz(M, F, prescale=prescale).double()
        sigma = oracle(M)
        nuclear = float(np.sum(sigma))
        if not nuclear:
            assert (found.descent, found.gain, found.alignment, found.chi) == (0.0, 0.0, 0.0, 1.0)
            continue
        gain = float(oracle(O)[0])
        size = 2.0 ** float(np.frexp(sigma[0])[1])
        descent = float(torch.sum(M.double() / size * O)) / (nuclear / size)
        assert found.gain == pytest.approx(gain, abs=2e-4), name
        assert found.descent == pytest.approx(descent, abs=2e-4), name
        assert found.alignment == pytest.approx(descent / gain, abs=4e-4), name
        assert found.frobenius == pytest.approx(float(O.norm()), abs=2e-4 * math.sqrt(min(M.shape))), name
        measured = alignment_of(M, O)
        assert tuple(measured) == pytest.approx((descent, gain, descent / gain), rel=1e-6), name


def test_residuals_far_below_rounding_keep_their_digits():
    of = spectrum(torch.diag(torch.tensor([3.0, 4.0], dtype=torch.float64)))
    delta = 0.64
    for j, found in enumerate(respond(of, Schedule.repeat(taylor(2), 6)).deltas):
        if j:
            delta = (40 * delta**3 + 15 * delta**4 + 9 * delta**5) / 64
        assert found == pytest.approx(delta, rel=1e-12)
    assert 0 < found < 1e-60


def test_the_exact_polar_factor_has_alignment_one_and_no_error():
    found = respond(spectrum(gaussian(7, 12)), None)
    assert (found.delta, found.epsilon, found.chi) == (0.0, 0.0, 1.0)
    assert found.alignment == pytest.approx(1.0, abs=1e-12)
    assert found.frobenius == pytest.approx(math.sqrt(7))


def test_steps_that_turn_a_sign_have_no_residual_but_a_polar_error_of_two():
    minus = Schedule((Polynomial((-2, 1)),))
    found = respond(spectrum(torch.eye(3, dtype=torch.float64)), minus, "spectral")
    assert (found.delta, found.epsilon, found.chi) == (0.0, 2.0, math.inf)
    assert found.alignment == -1.0


def test_steps_that_diverge_without_a_prescale_are_a_result_and_no_warning():
    of = spectrum(40 * gaussian(6, 9))
    found = respond(of, JORDAN, "none")
    assert not math.isfinite(found.alignment)
    assert not found.epsilon <= 1


def test_taylor_schedules_are_recognised_by_value():
    assert taylor_degree(Schedule(())) == taylor_degree(Schedule((Polynomial(("1.5", "-0.5")),))) == 1
    assert taylor_degree(Schedule.repeat(taylor(3), 2)) == 3
    for schedule in (Schedule((taylor(1), taylor(2))), JORDAN, Schedule((taylor(2), preset("jordan").polynomial))):
        assert taylor_degree(schedule) is None


@pytest.mark.parametrize("prescale", PRESCALES)
def test_exact_steps_are_the_schedule_on_singular_values(prescale):
    for name in SMALL:
        M = zoo()[name]
        if prescale == "none" and oracle(M)[0] > 1:
            continue
        for dtype in (torch.float32, torch.float64) if prescale == "frobenius" else (torch.float32,):
            of, O = by_definition(M.to(dtype), JORDAN, prescale)
            assert operator_error(O, schedule_on_singular_values(M, JORDAN, prescale)) <= 2e-7, name
            assert (of.shape, O.dtype) == (tuple(M.shape), torch.float64)


# -------------------------------------------------------------------------------------------- measured on matrices


def test_inner_products_of_batches_and_long_rows_are_those_of_float64():
    for shape in ((3, 5), (2, 3, 5), (4, 300_000), (1000, 700)):
        A, B = (torch.randn(*shape, generator=torch.Generator().manual_seed(k)) for k in (1, 2))
        expected = (A.double() * B.double()).sum((-2, -1))
        torch.testing.assert_close(inner(A, B), expected, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("shape", [(6, 9), (9, 6)])
def test_the_residual_is_that_of_definition_3(shape):
    M = with_spectrum(*shape, [1.0, 0.5, 0.2]).double()
    O = newton_schulz(M, steps=2)
    P = torch.from_numpy(svd_polar(M.numpy(), cutoff=1e-6))
    residual = float(torch.linalg.matrix_norm(P @ P.mT - O @ O.mT, 2))
    assert range_residual(O, P) == pytest.approx(residual, rel=1e-9)
    assert range_residual(P, P) == 0.0
    assert operator_norm(O) == pytest.approx(float(torch.linalg.matrix_norm(O, 2)), rel=1e-12)


def test_alignment_of_any_direction():
    M = gaussian(5, 8)
    P = polar(M)
    assert alignment_of(M, 3 * P).alignment == pytest.approx(1.0, abs=1e-5)
    assert alignment_of(M, -P).alignment == pytest.approx(-1.0, abs=1e-5)
    assert tuple(alignment_of(torch.zeros(5, 8), P)) == (0.0, 0.0, 0.0)
    assert tuple(alignment_of(M, torch.zeros(5, 8))) == (0.0, 0.0, 0.0)
    normalised = alignment_of(M, M)
    assert normalised.alignment == pytest.approx(float(M.norm()) ** 2 / oracle(M).sum() / oracle(M)[0], rel=1e-6)
    assert math.isnan(alignment_of(M, P * math.nan).alignment)
