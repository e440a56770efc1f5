"""How much a schedule magnifies rounding, and the error that an orthogonalizer is allowed."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from muonlab import NewtonSchulz, newton_schulz
from muonlab.orthogonalize.rounding import allowed_error, steepness
from muonlab.orthogonalize.segments import HALF_ACCURACY
from muonlab.polynomials import Schedule, preset, taylor
from tests.orthogonalize.zoo import gaussian, with_spectrum, zoo
from tests.reference.orthogonalize import operator_error, schedule_on_singular_values

SCHEDULES = {
    "identity": Schedule(()),
    **{f"taylor{k} x{q}": Schedule.repeat(taylor(k), q) for k in (1, 2, 3) for q in (1, 3, 6)},
    "jordan x5": preset("jordan").schedule(5),
    "polar_express x5": preset("polar_express").schedule(5),
    "polar_express x5, safe": preset("polar_express").schedule(5, safety="1.01"),
    "mixed": Schedule((taylor(1), *preset("jordan").schedule(2), taylor(3))),
}
LARGE = ("a long row", "few long rows", "gaussian 511x513")


def by_differences(F):
    """Largest central difference on grids that end at 0 and 1, where schedules are steep."""
    s = np.concatenate([np.geomspace(1e-6, 1, 20_001), np.linspace(0, 1, 20_001), 1 - np.geomspace(1e-8, 0.1, 20_001)])
    h = 1e-8
    return float(np.max(np.abs(F(s + h) - F(s - h)) / (2 * h)))


def test_the_steepness_is_the_largest_difference_quotient():
    for F in SCHEDULES.values():
        assert steepness(F) == pytest.approx(by_differences(F), rel=5e-3)


def test_taylor_schedules_are_steepest_at_zero():
    for name in [n for n in SCHEDULES if n.startswith(("taylor", "identity"))]:
        assert steepness(SCHEDULES[name]) == pytest.approx(float(SCHEDULES[name].slope), rel=1e-12)


def test_polar_express_is_steeper_near_one_than_at_zero():
    raw = SCHEDULES["polar_express x5"]
    assert steepness(raw) > 50 * float(raw.slope)
    assert steepness(raw) == pytest.approx(6.2e4, rel=0.02)  # "about 6e4", docs/adr/0004


def test_the_allowed_error_is_four_roundoffs_times_the_steepness_or_eight():
    for dtype in [torch.bfloat16, torch.float16, torch.float32, torch.float64]:
        u = torch.finfo(dtype).eps / 2
        assert allowed_error(SCHEDULES["identity"], dtype) == 32 * u
        assert allowed_error(SCHEDULES["taylor2 x6"], dtype) == pytest.approx(4 * u * 1.875**6, rel=1e-12)
        half = allowed_error(SCHEDULES["jordan x5"], dtype, "half") - allowed_error(SCHEDULES["jordan x5"], dtype)
        assert half == pytest.approx(HALF_ACCURACY, rel=1e-9)


def test_the_orthogonalizer_keeps_within_it_on_the_zoo():
    for prescale, name in product(
        ["frobenius", "schatten4"],
        ["identity", "taylor3 x6", "jordan x5", "polar_express x5, safe"],
    ):
        F = SCHEDULES[name]
        for animal, M in zoo().items():
            if animal not in LARGE:
                error = operator_error(
                    newton_schulz(M, F, prescale=prescale), schedule_on_singular_values(M, F, prescale)
                )
                assert error <= allowed_error(F), animal


def test_a_wrong_coefficient_does_not():
    F, wrong = SCHEDULES["taylor2 x3"], Schedule.repeat(preset("jordan").polynomial, 3)
    M = gaussian(16, 40)
    assert operator_error(newton_schulz(M, wrong), schedule_on_singular_values(M, F)) > 1000 * allowed_error(F)


def test_many_singular_values_at_one_need_the_larger_allowance_of_the_spectral_prescale_and_keep_it():
    F, errors = Schedule.repeat(taylor(2), 5), []
    for rank in (16, 32, 48):
        M = with_spectrum(96, 400, np.ones(rank), seed=rank)
        expected = schedule_on_singular_values(M, F, "spectral")
        errors.append(operator_error(newton_schulz(M, F, prescale="spectral"), expected))
    assert allowed_error(F) < max(errors) <= allowed_error(F, prescale="spectral")


def test_an_orthogonalizer_names_the_dtype_it_computes_in():
    for given, asked, computed in [
        (torch.float32, "auto", torch.float32),
        (torch.float64, "auto", torch.float64),
        (torch.bfloat16, "auto", torch.float32),
        (torch.float16, None, torch.float32),
        (torch.float64, None, torch.float64),
        (torch.float32, torch.bfloat16, torch.bfloat16),
        (torch.float64, torch.float32, torch.float32),
    ]:
        how, M = NewtonSchulz("jordan", compute_dtype=asked), gaussian(8, 12).to(given)
        assert how.dtype_for(M) == computed
        assert torch.equal(how(M), newton_schulz(M, "jordan", compute_dtype=computed))


PROPORTIONAL = {
    "equal rows": lambda n: torch.ones(n, 1) @ gaussian(1, n, seed=n),
    "ones": lambda n: torch.ones(n, n),
    "wide ones": lambda n: torch.ones(n // 4, n),
}


def test_proportional_rows_let_rounding_add_up_and_stay_within_the_allowance_of_their_size():
    for name in ["taylor2 x5", "jordan x5", "polar_express x5", "polar_express x5, safe"]:
        F, worst = SCHEDULES[name] if name in SCHEDULES else Schedule.repeat(taylor(2), 5), 0.0
        for make in PROPORTIONAL.values():
            for n in (16, 64, 256):
                M = make(n)
                error = operator_error(newton_schulz(M, F), schedule_on_singular_values(M, F))
                assert error <= allowed_error(F, size=n)
                worst = max(worst, error / allowed_error(F))
        if name == "taylor2 x5":
            assert worst > 2  # without the size the allowance would be broken


def test_the_committed_worst_cases_break_the_plain_rule_and_keep_the_wider_one():
    report = json.loads((Path(__file__).parents[2] / "results/rounding.json").read_text(encoding="utf-8"))
    plain = allowed_error(SCHEDULES["identity"])
    assert max(max(row.values()) for row in report["random"].values()) < 0.2
    sizes = [(int(n), max(row.values())) for kind in report["proportional"].values() for n, row in kind.items()]
    crowded = [max(row["spectral"].values()) for row in report["crowded"].values()]
    assert max(ratio for _, ratio in sizes) > 15
    assert max(crowded) > 5
    assert all(ratio <= allowed_error(SCHEDULES["identity"], size=n) / plain for n, ratio in sizes)
    assert all(ratio <= allowed_error(SCHEDULES["identity"], prescale="spectral") / plain for ratio in crowded)
