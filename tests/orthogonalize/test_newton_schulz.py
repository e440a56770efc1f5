from __future__ import annotations

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import mpmath
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from muonlab import newton_schulz, polar
from muonlab.orthogonalize import METHODS, PRESCALES, release
from muonlab.orthogonalize.iteration import as_schedule, iterate
from muonlab.orthogonalize.segments import plan_segments
from muonlab.orthogonalize.workspace import Workspace
from muonlab.polynomials import Polynomial, Schedule, preset, taylor
from muonlab.theory import flops
from tests.orthogonalize.zoo import gaussian, with_spectrum, zoo
from tests.reference.orthogonalize import (
    operator_error,
    plain_loop,
    schedule_on_singular_values,
    tolerance,
    unit_roundoff,
)

SCHEDULES = {
    "identity": Schedule(()),
    "cubic x5": Schedule.repeat(taylor(1), 5),
    "quintic x5": Schedule.repeat(taylor(2), 5),
    "quintic x10": Schedule.repeat(taylor(2), 10),
    "taylor 5 x3": Schedule.repeat(taylor(5), 3),
    "taylor 10 x3": Schedule.repeat(taylor(10), 3),
    "jordan x5": preset("jordan").schedule(5),
    "polar express x5, safe": preset("polar_express").schedule(5, safety="1.01"),
    "polar express x8": preset("polar_express").schedule(8),
    "mixed degrees": Schedule((taylor(1), taylor(3), taylor(2), taylor(5))),
}
LARGE = {"gaussian 511x513", "a long row", "few long rows"}


def test_result_is_the_schedule_on_the_singular_values_for_every_specimen():
    assert len(zoo()) >= 60
    allowed = {name: tolerance(schedule) for name, schedule in SCHEDULES.items()}
    for (name, schedule), (animal, M) in product(SCHEDULES.items(), zoo().items()):
        if animal in LARGE and name not in ("quintic x5", "taylor 5 x3"):
            continue
        expected = schedule_on_singular_values(M, schedule)
        for method in METHODS if name == "quintic x5" else ("standard", "gram"):
            error = operator_error(newton_schulz(M, schedule, method=method), expected)
            assert error <= allowed[name], f"{name}, {animal}, {method}: {error:.3g}"


def test_every_prescale_gives_the_schedule_on_the_scaled_singular_values():
    schedule = Schedule.repeat(taylor(2), 3)
    allowed = tolerance(schedule)
    for prescale, (animal, specimen) in product(PRESCALES, zoo().items()):
        if animal in LARGE and prescale not in ("schatten8", "spectral"):
            continue
        outside = prescale == "none" and specimen.double().norm() > 1
        M = specimen / specimen.double().norm().float() if outside else specimen
        expected = schedule_on_singular_values(M, schedule, prescale)
        error = operator_error(newton_schulz(M, schedule, prescale=prescale), expected)
        assert error <= allowed, (prescale, animal)


def test_a_wrong_schedule_is_told_apart_on_most_specimens():
    # the same check with one coefficient off by 1e-4 must fail: the tolerance is not slack
    right = Schedule.repeat(taylor(2), 5)
    wrong = Schedule.repeat(Polynomial((1.875, -1.25, 0.3751)), 5)
    allowed = tolerance(right)
    caught = sum(
        operator_error(newton_schulz(M, wrong), schedule_on_singular_values(M, right)) > allowed
        for animal, M in zoo().items()
        if animal not in LARGE
    )
    assert caught > len(zoo()) / 2


def test_float64_agrees_with_fifty_digit_arithmetic():
    for method, shape in product(["standard", "gram"], [(3, 5), (6, 6), (7, 2)]):
        schedule = Schedule.repeat(taylor(2), 4)
        M = gaussian(*shape, seed=11).double()
        with mpmath.workdps(50):
            A = mpmath.matrix(M.tolist())
            U, sigma, V = mpmath.svd_r(A)
            norm = mpmath.sqrt(sum(s**2 for s in sigma))
            a, b, c = (mpmath.mpf(x.numerator) / x.denominator for x in taylor(2).exact)
            values = []
            for s in sigma:
                x = s / norm
                for _ in range(4):
                    x = x * (a + b * x**2 + c * x**4)
                values.append(x)
            expected = U * mpmath.diag(values) * V
            rows = [[float(expected[i, j]) for j in range(shape[1])] for i in range(shape[0])]
        reference = torch.tensor(rows, dtype=torch.float64)
        error = operator_error(newton_schulz(M, schedule, method=method), reference)
        assert error <= tolerance(schedule, torch.float64)


def test_scaling_by_a_power_of_two_changes_no_bit():
    for prescale, method, exponent in product(
        [p for p in PRESCALES if p not in ("none", "paper")], ["standard", "gram"], [-100, -21, 41, 100]
    ):
        M = gaussian(48, 130, seed=2)
        plain = newton_schulz(M, method=method, prescale=prescale)
        scaled = newton_schulz(M * 2.0**exponent, method=method, prescale=prescale)
        assert torch.equal(plain, scaled)


def test_tiny_and_huge_inputs_give_the_same_result():
    M = gaussian(30, 50, seed=3)
    for factor in (1e-30, 1e30):
        torch.testing.assert_close(newton_schulz(M * factor), newton_schulz(M), atol=2e-6, rtol=0)


def test_paper_prescale_divides_only_matrices_larger_than_one():
    M = gaussian(6, 9, seed=4)
    small = M * (0.5 / M.norm())
    torch.testing.assert_close(newton_schulz(small, steps=0, prescale="paper"), small, atol=0, rtol=0)
    torch.testing.assert_close(
        newton_schulz(M * 10, prescale="paper"), newton_schulz(M, prescale="frobenius"), atol=1e-6, rtol=0
    )
    tiny = small * 2.0**-40
    torch.testing.assert_close(newton_schulz(tiny, steps=0, prescale="paper"), tiny, atol=0, rtol=0)


def test_a_batch_gets_bit_for_bit_what_each_matrix_gets_alone():
    cases = product(PRESCALES, METHODS, [(5, 3, 8), (2, 3, 40, 16), (3, 63, 65), (4, 64, 576), (1, 6, 6)])
    for prescale, method, shape in (*cases, ("frobenius", "gram", (2, 511, 513)), ("schatten8", "auto", (2, 511, 513))):
        batch = torch.randn(shape, generator=torch.Generator().manual_seed(5)) * 1e-3
        together = newton_schulz(batch, method=method, prescale=prescale, steps=3)
        alone = [newton_schulz(M.clone(), method=method, prescale=prescale, steps=3) for M in batch.flatten(0, -3)]
        assert torch.equal(together.flatten(0, -3), torch.stack(alone))


def test_the_stacked_code_for_devices_agrees_with_the_single_one():
    for prescale, shape, name in product(
        PRESCALES, [(4, 9, 20), (4, 20, 9)], ["quintic x5", "taylor 5 x3", "polar express x8", "identity"]
    ):
        schedule = SCHEDULES[name]
        stack = (
            torch.randn(shape, generator=torch.Generator().manual_seed(6))
            * torch.tensor([1.0, 1e-25, 1e25, 0.1])[:, None, None]
        )
        if prescale in ("none", "paper"):
            stack = stack / stack.abs().amax((1, 2), keepdim=True) * 0.01
        m, n = min(shape[1:]), max(shape[1:])
        for method in ("standard", "gram"):
            out = torch.empty_like(stack)
            segments = plan_segments(schedule, m, n, torch.float32, method)
            iterate(stack, out, Workspace(torch.float32, stack.device), segments, prescale)
            expected = newton_schulz(stack, schedule, method=method, prescale=prescale)
            torch.testing.assert_close(out, expected, atol=2 * tolerance(schedule), rtol=0)


def test_inputs_are_neither_changed_nor_aliased():
    for shape, method in product([(6, 10), (10, 6), (3, 10, 6)], METHODS):
        for steps in (0, 1, 2, 3):
            for prescale in PRESCALES:
                M = gaussian(*shape[-2:], seed=7).expand(shape).clone() * 0.01
                before = M.clone()
                O = newton_schulz(M, steps=steps, method=method, prescale=prescale)
                assert torch.equal(M, before)
                assert O.untyped_storage().data_ptr() != M.untyped_storage().data_ptr()
                kept = O.clone()
                newton_schulz(torch.randn(shape), steps=steps, method=method, prescale=prescale)
                assert torch.equal(O, kept), "a later call wrote into an earlier result"
                assert O.is_contiguous()


def test_strided_inputs_give_the_bits_of_their_contiguous_copies():
    M = zoo()["strided"]
    assert not M.is_contiguous()
    assert torch.equal(newton_schulz(M), newton_schulz(M.contiguous()))


def test_an_input_that_requires_grad_gives_a_detached_result():
    M = gaussian(4, 6).requires_grad_()
    O = newton_schulz(M)
    assert not O.requires_grad
    assert M.grad is None


def test_inference_mode_and_tracing_leave_no_buffers_behind_for_later_calls():
    M = gaussian(4, 6)
    expected = newton_schulz(M)
    release()
    with torch.inference_mode():
        assert torch.equal(newton_schulz(M), expected)
    assert torch.equal(newton_schulz(M), expected)
    release()
    with FakeTensorMode() as mode:
        assert newton_schulz(mode.from_tensor(torch.zeros(2, 4, 6)).to("meta")).shape == (2, 4, 6)
    assert torch.equal(newton_schulz(M), expected)


def test_autocast_does_not_change_the_dtype_of_the_computation():
    M = gaussian(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        O, P = newton_schulz(M), polar(M)
    assert torch.equal(O, newton_schulz(M))
    assert torch.equal(P, polar(M))


def test_threads_do_not_share_buffers():
    matrices = [gaussian(20, 30, seed=s) for s in range(8)]
    expected = [newton_schulz(M) for M in matrices]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            results = list(pool.map(newton_schulz, matrices))
            assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def test_empty_matrices_come_back_empty():
    for shape in [(0, 5), (5, 0), (0, 0), (0, 3, 4), (2, 0, 4), (2, 3, 0)]:
        for method in METHODS:
            assert newton_schulz(torch.empty(shape), method=method).shape == shape


def test_zero_gives_zero_for_every_prescale():
    for prescale in PRESCALES:
        assert torch.equal(newton_schulz(torch.zeros(3, 5), prescale=prescale), torch.zeros(3, 5))
        mixed = torch.stack([torch.zeros(3, 5), gaussian(3, 5) * 0.1])
        O = newton_schulz(mixed, prescale=prescale)
        assert torch.equal(O[0], torch.zeros(3, 5))
        assert bool(torch.isfinite(O).all())


def test_non_finite_entries_give_nan_and_leave_the_rest_of_the_batch_alone():
    for bad, method in product([float("nan"), float("inf"), -float("inf")], METHODS):
        batch = torch.stack([gaussian(4, 6, seed=1), gaussian(4, 6, seed=2)]) * 0.1
        clean = newton_schulz(batch, method=method)
        batch[1, 2, 3] = bad
        for prescale in PRESCALES:
            O = newton_schulz(batch, method=method, prescale=prescale)
            assert bool(torch.isnan(O[1]).all()) or prescale == "none"
            assert not bool(torch.isfinite(O[1]).all())
        assert torch.equal(newton_schulz(batch, method=method)[0], clean[0])


def test_check_finite_raises_and_says_how_many():
    M = gaussian(4, 6)
    M[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"must be finite.*got 1 NaN or infinite of 24 entries.*check_finite=False"):
        newton_schulz(M, check_finite=True)
    assert bool(torch.isfinite(newton_schulz(gaussian(4, 6), check_finite=True)).all())


def test_half_precision_inputs_compute_in_float32_unless_told_otherwise():
    for dtype in [torch.bfloat16, torch.float16]:
        M = gaussian(12, 20, seed=8).to(dtype)
        O = newton_schulz(M)
        assert O.dtype == dtype
        torch.testing.assert_close(O, newton_schulz(M.float()).to(dtype), atol=0, rtol=0)
        batch = torch.stack([M, -M])
        assert torch.equal(newton_schulz(batch)[0], O)


def test_half_precision_computation_stays_within_its_own_roundoff():
    for dtype, method, name in product(
        [torch.bfloat16, torch.float16], ["standard", "gram"], ["quintic x5", "jordan x5", "polar express x5, safe"]
    ):
        schedule = SCHEDULES[name]
        for animal in ("gaussian 64x64", "gaussian 16x40", "half zero 33x65", "rank 2 33x65", "x 1e-30", "1/k 65x33"):
            M = zoo()[animal]
            O = newton_schulz(M, schedule, compute_dtype=dtype, method=method)
            assert O.dtype == torch.float32
            error = operator_error(O, schedule_on_singular_values(M, schedule))
            assert error <= tolerance(schedule, dtype), animal


def test_half_precision_gram_restarts_before_eigenvalues_turn_away():
    for dtype, longest in ((torch.bfloat16, 3), (torch.float16, 5)):
        for schedule in (Schedule.repeat(taylor(2), 5), preset("polar_express").schedule(5)):
            segments = plan_segments(schedule, 256, 1024, dtype, "gram")
            assert max(map(len, segments)) <= longest
            for segment in segments:
                slope = float(Schedule(segment).slope)
                assert len(segment) == 1 or unit_roundoff(dtype) * slope**2 <= 0.25
    # without restarts the same matrix blows up: the reason for the rule
    M = with_spectrum(64, 64, np.r_[np.ones(32), np.zeros(32)])
    schedule = Schedule.repeat(taylor(2), 10)
    out = torch.empty(64, 64, dtype=torch.bfloat16)
    iterate(M.bfloat16(), out, Workspace(torch.bfloat16, M.device), (schedule.polynomials,), "frobenius")
    assert not float(torch.linalg.matrix_norm(out.double().nan_to_num(nan=1e9), 2)) <= 2
    restarted = newton_schulz(M, schedule, compute_dtype=torch.bfloat16, method="gram")
    assert float(torch.linalg.matrix_norm(restarted.double(), 2)) <= 1.1


def test_single_precision_gram_without_restarts_misses_the_tolerance():
    M = with_spectrum(33, 65, np.r_[1.0, np.full(32, 0.003)])
    schedule = Schedule.repeat(taylor(2), 10)
    expected = schedule_on_singular_values(M, schedule)
    out = torch.empty_like(M)
    iterate(M, out, Workspace(torch.float32, M.device), (schedule.polynomials,), "frobenius")
    assert operator_error(out, expected) > 5 * tolerance(schedule)
    assert operator_error(newton_schulz(M, schedule, method="gram"), expected) <= tolerance(schedule)


def test_products_executed_are_those_of_the_cost_model():
    for kappa, q in product([1, 2, 3, 4, 6, 9, 10], [1, 2, 5]):
        m, n = 12, 30
        M = gaussian(m, n).double()  # its precision allows one segment for every degree here
        for method in ("standard", "gram"):
            schedule = Schedule.repeat(taylor(kappa), q)
            segments = plan_segments(schedule, m, n, torch.float64, method)
            expected = sum(flops(m, n, "gram", kappa, len(s)) for s in segments)
            if method == "standard":
                assert expected == flops(m, n, "standard", kappa, q)
            with FlopCounterMode(display=False) as counter:
                newton_schulz(M, schedule, method=method)
            assert counter.get_total_flops() == expected


def test_schatten_8_reuses_the_square_of_the_gram_matrix():
    M = gaussian(12, 30)
    with FlopCounterMode(display=False) as plain:
        newton_schulz(M, steps=3, method="gram", prescale="frobenius")
    with FlopCounterMode(display=False) as schatten8:
        newton_schulz(M, steps=3, method="gram", prescale="schatten8")
    assert schatten8.get_total_flops() == plain.get_total_flops()


def test_auto_takes_gram_space_for_wide_matrices_and_the_standard_one_for_square_ones():
    schedule = Schedule.repeat(taylor(2), 5)
    assert len(plan_segments(schedule, 768, 768, torch.float32, "auto")) == 5
    assert len(plan_segments(schedule, 768, 3072, torch.float32, "auto")) == 1
    assert len(plan_segments(schedule, 768, 2304, torch.float32, "auto")) == 1
    assert len(plan_segments(schedule, 256, 2304, torch.float32, "auto")) == 1
    assert len(plan_segments(schedule, 64, 576, torch.float32, "auto")) == 1


def test_methods_agree_with_the_plain_loop():
    schedule = Schedule.repeat(taylor(2), 5)
    for m, n in ((16, 40), (64, 576)):
        M = gaussian(m, n, seed=12)
        for method in METHODS:
            O = newton_schulz(M, schedule, method=method)
            torch.testing.assert_close(O, plain_loop(M, schedule), atol=2e-5, rtol=0)


def test_presets_can_be_named_and_bring_their_steps():
    M = gaussian(10, 20)
    assert torch.equal(newton_schulz(M, "polar_express"), newton_schulz(M, preset("polar_express").schedule(5)))
    assert torch.equal(newton_schulz(M, "jordan", steps=3), newton_schulz(M, preset("jordan"), steps=3))
    assert torch.equal(newton_schulz(M), newton_schulz(M, taylor(2), steps=5))


def test_a_schedule_keeps_its_name_whatever_equal_one_was_used_before():
    for name in ("first", "second"):
        schedule = Schedule.repeat(taylor(2), 3)
        assert str(as_schedule(dataclasses.replace(schedule, name=name))) == name


@pytest.mark.slow
def test_stress_spectra_at_full_size():
    r = 768
    spectra = {
        "log to 1e-9": np.logspace(0, -9, r),
        "half zero": np.r_[np.ones(r // 2), np.zeros(r // 2)],
        "rank 2": np.array([1.0, 0.5]),
        "flat": np.ones(r),
        "linear": np.linspace(1, 0, r),
        "1/k": 1 / np.arange(1, r + 1),
        "1/k^2": 1 / np.arange(1, r + 1) ** 2,
        "one spike": np.r_[1.0, np.full(r - 1, 1e-3)],
        "two clusters": np.r_[np.full(r // 2, 1.0), np.full(r // 2, 1e-4)],
        "geometric": 0.97 ** np.arange(r),
    }
    schedules = Schedule.repeat(taylor(2), 5), preset("polar_express").schedule(5, safety="1.01")
    for (name, sigma), schedule in product(spectra.items(), schedules):
        M = with_spectrum(r, 3072, sigma)
        expected = schedule_on_singular_values(M, schedule)
        for method in METHODS:
            O = newton_schulz(M, schedule, method=method)
            error = O.double() - expected
            squared = torch.linalg.eigvalsh(error @ error.mT)[-1]  # a fifth of the time of an SVD
            assert math.sqrt(max(0.0, float(squared))) <= tolerance(schedule), name
            inner = (M.double() * O.double()).sum()
            assert 0 < float(inner) <= float(sigma.sum()) * 1.2, name
