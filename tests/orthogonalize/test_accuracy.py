"""Accuracy "half": fewer restarts of Gram space, and an error that stays at the spacing of bfloat16."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from muonlab import newton_schulz
from muonlab.orthogonalize.iteration import iterate
from muonlab.orthogonalize.segments import HALF_ACCURACY, gram_sensitivity, plan_segments
from muonlab.orthogonalize.workspace import Workspace
from muonlab.polynomials import Schedule, preset, taylor
from tests.orthogonalize.zoo import with_spectrum, zoo
from tests.reference.orthogonalize import operator_error, schedule_on_singular_values, tolerance, unit_roundoff

STEEP = {
    "jordan x5": preset("jordan").schedule(5),
    "polar express x5, safe": preset("polar_express").schedule(5, safety="1.01"),
    "quintic x8": Schedule.repeat(taylor(2), 8),
}


def test_every_specimen_stays_within_the_spacing_of_bfloat16():
    allowed = {name: HALF_ACCURACY + tolerance(schedule) for name, schedule in STEEP.items()}
    for (name, schedule), (animal, M) in product(STEEP.items(), zoo().items()):
        if M.numel() > 200_000:
            continue
        expected = schedule_on_singular_values(M, schedule)
        for method in ("gram", "auto"):
            O = newton_schulz(M, schedule, method=method, accuracy="half")
            assert operator_error(O, expected) <= allowed[name], (name, animal)


def test_it_needs_fewer_restarts_and_fewer_operations():
    for name in ["jordan x5", "polar express x5, safe"]:
        for m, n in ((768, 3072), (256, 2304), (64, 576)):
            full, half = (plan_segments(STEEP[name], m, n, torch.float32, "auto", a) for a in ("full", "half"))
            assert len(half) < len(full)


def test_steps_that_would_leave_the_bound_start_anew():
    # all five Polar Express steps in one segment: the sensitivity predicts an error beyond the bound, and it is there
    schedule = STEEP["polar express x5, safe"]
    assert unit_roundoff(torch.float32) * gram_sensitivity(schedule.polynomials) > HALF_ACCURACY
    assert len(plan_segments(schedule, 64, 576, torch.float32, "gram", "half")) == 2
    values = [1.0] + [1e-3] * 63
    M = with_spectrum(64, 576, torch.tensor(values, dtype=torch.float64))
    O = torch.empty_like(M)
    iterate(M, O, Workspace(torch.float32, M.device), (schedule.polynomials,), "frobenius")
    assert operator_error(O, schedule_on_singular_values(M, schedule)) > HALF_ACCURACY + tolerance(schedule)


def test_nothing_changes_where_one_segment_does_anyway_and_for_the_standard_method():
    M = torch.randn(64, 576, generator=torch.Generator().manual_seed(0))
    assert torch.equal(newton_schulz(M, accuracy="half"), newton_schulz(M))
    jordan = STEEP["jordan x5"]
    standard = [newton_schulz(M, jordan, method="standard", accuracy=a) for a in ("full", "half")]
    assert torch.equal(*standard)
    assert not torch.equal(newton_schulz(M, jordan, accuracy="half"), newton_schulz(M, jordan))


def test_half_precision_itself_keeps_its_restarts():
    for dtype in (torch.float16, torch.bfloat16):
        safe = STEEP["polar express x5, safe"]
        assert plan_segments(safe, 256, 1024, dtype, "gram", "half") == plan_segments(
            safe, 256, 1024, dtype, "gram", "full"
        )


def test_an_unknown_accuracy_is_refused():
    with pytest.raises(ValueError, match=r"accuracy must be one of 'full', 'half', got 'quarter': pick one of these"):
        newton_schulz(torch.eye(2), accuracy="quarter")
