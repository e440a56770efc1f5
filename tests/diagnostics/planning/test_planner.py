"""plan: targets are met and guaranteed, nothing cheaper is missed, and answers repeat what an SVD measures."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import runpy
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from muonlab import Muon, MuonWithAux, newton_schulz, split_params
from muonlab.cli.app import main
from muonlab.diagnostics.planning import planner
from muonlab.diagnostics.planning.calibration import TIMED, Calibration
from muonlab.diagnostics.planning.candidates import (
    checked_spectrum,
    gaussian_spectrum,
    judge_candidates,
    scale_spectra,
    typical_spectra,
)
from muonlab.diagnostics.planning.planner import ModelPlan, plan
from muonlab.diagnostics.planning.search import BASES, PlanSearch, PlanTarget
from muonlab.orthogonalize import as_schedule
from muonlab.orthogonalize.rounding import allowed_error
from muonlab.orthogonalize.segments import plan_segments as segments_of
from muonlab.orthogonalize.segments import segment_flops
from muonlab.polynomials import Schedule, preset, taylor
from muonlab.theory import alignment_floor, schedule_error

ROOT = Path(__file__).parents[3]
POWERS = {"frobenius": 2, "schatten4": 4, "schatten8": 8, "spectral": math.inf}


def fake(shape, *, gram_space=True):
    """Return times as a machine of constant throughput would have them, with a small cost for every call."""
    m, n = sorted(shape)
    square, across = 2e-11 * m**3, 2e-11 * m * m * n
    product = 3 * square if gram_space else 30 * square
    first = 1e-5 + 2 * across + square
    seconds = {
        "nothing": 1e-5, "frobenius": first, "schatten4": first * 1.02, "schatten8": first * 1.05,
        "spectral": first + 10 * square, "apart": first + 2 * (2 * across + square),
        "segment_1": 1e-7, "segment_2": square, "segment_3": 2 * square, "segment_4": 2 * square,
        "segment_222": square + 2 * (product + square),
    }  # fmt: skip
    assert set(seconds) == set(TIMED)
    return Calibration(shape, seconds)


def made(shape=(48, 96), **options):
    return plan(shape, calibration=fake(shape), **options)


def matrix_of(sigma, m, n):
    generator = torch.Generator().manual_seed(0)
    r = len(sigma)
    U, V = (torch.linalg.qr(torch.randn(k, r, generator=generator, dtype=torch.float64)).Q for k in (m, n))
    return (U * torch.as_tensor(np.array(sigma))) @ V.T


def measured_alignment(chosen, M):
    """Return ⟨M, O⟩/(‖M‖_*·‖O‖_op) of what the plan's orthogonalizer makes of M, by singular values."""
    O = chosen.orthogonalizer()(M.to(chosen.dtype)).double()
    gain = torch.linalg.matrix_norm(O, 2)
    return float((M * O).sum() / torch.linalg.svdvals(M).sum() / gain)


# What is found


def test_a_plan_meets_its_target_by_its_own_basis():
    for basis, target in (("typical", 0.5), ("typical", 0.999), ("floor", 0.9), ("floor", 0.98)):
        found = made(target_alignment=target, basis=basis)
        assert found.status == "met"
        assert (found.floor if basis == "floor" else found.alignment) >= target
        assert found.floor <= found.alignment


def test_the_alignment_is_the_worst_that_an_svd_measures_on_the_typical_spectra():
    for shape, accuracy in (((48, 96), "half"), ((96, 40), "full")):
        found = made(shape, dtype=torch.float64, accuracy="full")
        values = [measured_alignment(found, matrix_of(s, *shape)) for s in typical_spectra(*shape).values()]
        assert min(values) == pytest.approx(found.alignment, abs=1e-9)
        quick = made(shape, accuracy=accuracy)
        values = [measured_alignment(quick, matrix_of(s, *shape)) for s in typical_spectra(*shape).values()]
        assert min(values) >= quick.alignment - 1e-4


def test_the_alignment_on_a_given_spectrum_is_what_an_svd_measures():
    sigma = np.linspace(3.0, 0.4, 20)
    M = matrix_of(sigma, 24, 30)
    by_values = made((24, 30), spectrum=sigma, dtype=torch.float64, accuracy="full")
    by_matrix = made((24, 30), spectrum=M, dtype=torch.float64, accuracy="full")
    assert measured_alignment(by_values, M) == pytest.approx(by_values.alignment, abs=1e-9)
    assert by_matrix.schedule == by_values.schedule
    assert by_matrix.alignment == pytest.approx(by_values.alignment, abs=1e-9)
    typical = made((24, 30), dtype=torch.float64)
    assert by_values.seconds < typical.seconds, "an easy spectrum takes less than all typical ones"


def test_epsilon_is_the_polar_error_that_an_svd_measures():
    sigma = np.geomspace(1.0, 0.02, 16)
    found = made((16, 40), spectrum=sigma, target_epsilon=0.05, dtype=torch.float64, accuracy="full")
    O = found.orthogonalizer()(matrix_of(sigma, 16, 40))
    assert float((torch.linalg.svdvals(O) - 1).abs().max()) == pytest.approx(found.epsilon, abs=1e-9)
    assert found.epsilon <= 0.05


def test_an_error_with_basis_floor_is_guaranteed_on_the_interval():
    found = made(target_epsilon=0.1, basis="floor", ell=0.02, accuracy="full")
    rounding = allowed_error(found.schedule, prescale=found.prescale, size=96)
    assert found.epsilon == schedule_error(found.schedule, 0.02).epsilon + rounding <= 0.1
    assert "where σ_min is at least 0.02 ‖M‖_F" in found.reason


@pytest.mark.parametrize(("target", "ell"), [(0.01, 0.2), (0.3, 1e-3)])
def test_the_interval_of_a_guaranteed_error_is_relative_to_the_frobenius_norm(target, ell):
    found = made(target_epsilon=target, basis="floor", ell=ell)
    assert found.status == "met"
    for count in (1, 7):
        sigma = np.r_[np.full(count, 1.0), np.geomspace(0.9, ell, 20)]
        sigma[-1] = ell * np.sqrt(np.sum(sigma[:-1] ** 2) / (1 - ell**2))  # σ_min/‖M‖_F = ell exactly
        sigma = np.maximum(sigma, sigma[-1])
        O = found.orthogonalizer()(matrix_of(sigma, 48, 96).float()).double()
        values = torch.linalg.svdvals(O)[: len(sigma)]
        assert float((values - 1).abs().max()) <= found.epsilon


@pytest.mark.parametrize(
    ("size", "target"),
    [(8, 0.5), pytest.param(32, 0.75, marks=pytest.mark.slow), pytest.param(64, 0.92, marks=pytest.mark.slow)],
)
def test_a_guarantee_in_half_precision_survives_its_rounding(size, target):
    """One large singular value and many small ones, where bfloat16 loses most."""
    found = made((size, size), dtype=torch.bfloat16, target_alignment=target, basis="floor")
    for x in np.geomspace(1e-4, 1.0, 25):
        M = matrix_of([1.0] + [x] * (size - 1), size, size)
        assert measured_alignment(found, M) >= found.floor


def test_no_candidate_that_reaches_the_target_is_cheaper():
    shape, target = (40, 100), 0.95
    times, spectra = fake(shape), list(typical_spectra(40, 100).values())
    cheapest = math.inf
    for judgement in judge_candidates(scale_spectra(spectra, tuple(POWERS.values()))):
        for i, prescale in enumerate(POWERS):
            if judgement.alignment[3 * i : 3 * i + 3].min() < target or (not judgement.schedule.steps and i):
                continue
            for method in ("standard", "gram"):
                segments = segments_of(judgement.schedule, 40, 100, torch.float32, method, "full")
                seconds = times.predict(segments, prescale)
                if seconds < cheapest and accepted(judgement.schedule):
                    cheapest = seconds
    found = plan(shape, target_alignment=target, calibration=times, accuracy="full")
    assert found.seconds == cheapest


def accepted(schedule):
    try:
        as_schedule(schedule)
    except ValueError:
        return False
    return True


def test_no_row_of_the_frontier_is_beaten_and_the_choice_is_on_it():
    found = made()
    rows = found.frontier
    assert len(rows) > 5
    for one, other in itertools.pairwise(rows):
        assert one.seconds < other.seconds
        assert one.alignment < other.alignment
    assert any(row.schedule == found.schedule and row.seconds == found.seconds for row in rows)
    met = [row for row in rows if row.alignment >= 0.95]
    assert min(row.seconds for row in met) == found.seconds


@pytest.mark.parametrize("prescale", POWERS)
def test_floors_hold_on_spikes_that_are_made_to_break_them(prescale):
    search = PlanSearch(
        fake((32, 64)), [np.ones(3)], PlanTarget("alignment", 0.9, "typical"), ("full", "half"), torch.float32
    )
    options = [option for option in search.meeting(math.inf) if option.prescale == prescale][::1200]
    assert options
    for option in options:
        floor = search.floor(option)
        for x in np.geomspace(1e-3, 1, 60):
            M = matrix_of([1.0] + [x] * 31, 32, 64)
            sigma = np.array([1.0] + [x] * 31)
            norm = (
                sigma.max() if prescale == "spectral" else np.sum(sigma ** POWERS[prescale]) ** (1 / POWERS[prescale])
            )
            F = option.schedule(sigma / norm)
            assert (F @ sigma) / sigma.sum() / np.abs(F).max() >= floor
        O = newton_schulz(M.float(), option.schedule, prescale=prescale, method=option.method).double()
        assert float((M * O).sum() / torch.linalg.svdvals(M).sum() / torch.linalg.matrix_norm(O, 2)) >= floor - 1e-3


def test_the_floor_is_that_of_the_theory():
    found = made(accuracy="full", basis="floor")
    power = {"frobenius": 2, "schatten4": 4}.get(found.prescale, 8)
    exact, largest = alignment_floor(found.schedule, 48, schatten=power), schedule_error(found.schedule, 0.0).s_max
    rounding = allowed_error(found.schedule, prescale=found.prescale, size=96) / largest
    assert found.floor == pytest.approx((exact - rounding) / (1 + rounding), abs=1e-12)


def test_dear_gram_space_makes_the_standard_method_the_choice():
    shape = (32, 32)
    assert plan(shape, calibration=fake(shape, gram_space=False)).method == "standard"
    assert plan((16, 256), calibration=fake((16, 256))).method == "gram"


def test_flops_and_seconds_are_those_of_its_segments():
    found = made()
    segments = segments_of(found.schedule, 48, 96, torch.float32, found.method, found.accuracy)
    assert found.flops == segment_flops(segments, 48, 96)
    assert found.seconds == fake((48, 96)).predict(segments, found.prescale)


@pytest.mark.parametrize("basis", BASES)
def test_a_target_out_of_reach_is_an_answer_with_the_best_and_a_reason(basis):
    found = made((24, 24), target_alignment=1 - 1e-15, basis=basis)
    assert found.status == "not_met"
    assert "no candidate reaches it" in found.reason
    assert (found.floor if basis == "floor" else found.alignment) > 0.98
    found = made((24, 24), target_epsilon=1e-18, **({"ell": 1e-3} if basis == "floor" else {}), basis=basis)
    assert found.status == "not_met"
    assert 1e-18 < found.epsilon < 5e-3, "rounding is never as small"


def test_schedules_that_diverge_are_not_planned():
    found = made(dtype=torch.bfloat16, target_alignment=0.9)
    for row in found.frontier:
        name = str(row.schedule)
        assert "polar_express x5" not in name or "safety" in name or "then" in name
    as_schedule(found.schedule, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="diverges"):
        as_schedule(preset("polar_express").schedule(5), dtype=torch.bfloat16)


def test_a_plan_is_json_without_nan_and_text_with_its_numbers():
    found = made()
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["schedule"] == str(found.schedule)
    assert content["shape"] == [48, 96]
    assert len(content["coefficients"]) == content["steps"] == found.schedule.steps
    assert set(content["frontier"][0]) == {"steps", *(field.name for field in dataclasses.fields(planner.PlanRow))}
    assert f"{found.alignment:.4f}" in str(found)
    again = made()
    assert found == again
    assert found.to_dict() == again.to_dict()


# Spectra


def test_gaussian_quantiles_are_near_the_singular_values_of_a_gaussian_matrix():
    for m, n in ((200, 200), (100, 400), (300, 120)):
        drawn = torch.linalg.svdvals(torch.randn(m, n, generator=torch.Generator().manual_seed(3))).double().numpy()
        expected = gaussian_spectrum(m, n) * math.sqrt(max(m, n))
        assert np.abs(drawn - expected).max() < 0.02 * expected.max()
        assert np.all(np.diff(expected) <= 0)


def test_the_worst_decaying_spectrum_is_close_to_matrices_with_decaying_columns():
    m, n = 128, 256
    M = torch.randn(m, n, generator=torch.Generator().manual_seed(1)).double() / torch.arange(1, n + 1)
    spectra = {"real": torch.linalg.svdvals(M).numpy(), **typical_spectra(m, n)}
    for q in (3, 5, 8):
        found = {}
        for name, sigma in spectra.items():
            F = Schedule.repeat(taylor(2), q)(sigma / np.linalg.norm(sigma))
            found[name] = F @ sigma / sigma.sum() / F.max()
        assert abs(min(found["decaying"], found["decaying gaussian"]) - found["real"]) < 0.04


def test_zero_singular_values_are_left_out_and_scale_does_not_count():
    assert checked_spectrum([0.0, 2.0, 4.0], (3, 5)).tolist() == [4.0, 2.0]
    assert checked_spectrum(torch.diag(torch.tensor([3.0, 0.0])), (2, 2)).tolist() == [3.0]
    assert checked_spectrum(None, (2, 2)) is None
    assert made((4, 8), spectrum=[1e-30, 2e-30]).alignment == made((4, 8), spectrum=[1.0, 2.0]).alignment


# Networks


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.attention = nn.MultiheadAttention(8, 2)
        self.conv = nn.Conv2d(4, 6, 3)
        self.first, self.second, self.head = nn.Linear(8, 24), nn.Linear(24, 8), nn.Linear(8, 10)


@pytest.fixture
def faked(monkeypatch):
    monkeypatch.setattr(planner, "calibrate", lambda shape, **_: fake(shape))


@pytest.mark.usefixtures("faked")
def test_a_network_gets_a_plan_for_each_shape_that_muon_sees():
    found = plan(Net(), target_alignment=0.9)
    assert isinstance(found, ModelPlan)
    counted = {each.shape: count for each, count in found.plans}
    assert counted == {(6, 36): 1, (24, 8): 1, (8, 24): 1, (8, 8): 4}  # three fused blocks and their output matrix
    assert found.seconds == pytest.approx(sum(each.seconds * count for each, count in found.plans))
    assert found.status == "met"
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [entry["count"] for entry in content["plans"]] == [count for _, count in found.plans]
    assert "4 of 8x8" in str(found)


def test_without_a_calibration_one_is_made_for_the_shape_dtype_and_device(monkeypatch):
    asked = []

    def calibrate(shape, **options):
        asked.append((shape, options))
        return fake(shape)

    monkeypatch.setattr(planner, "calibrate", calibrate)
    plan([12, 20], dtype=torch.float64, recalibrate=True)
    assert asked == [((12, 20), {"dtype": torch.float64, "device": "cpu", "recalibrate": True})]


# Bad input


BAD = [
    (lambda: plan("2x2"), TypeError, "shape must be two whole numbers .* '2x2': for example"),
    (lambda: plan((2, 0)), ValueError, r"shape\[1\] must be at least 1, got 0"),
    (lambda: made(target_alignment=1.0), ValueError, r"target_alignment must be .* \(0, 1\), got 1.0"),
    (lambda: made(target_alignment=0), ValueError, "target_alignment must be .* got 0.0"),
    (lambda: made(target_epsilon=0), ValueError, "target_epsilon must be .* got 0.0"),
    (lambda: made(target_alignment=0.9, target_epsilon=0.1), ValueError, "one target, got .* leave one out"),
    (lambda: made(basis="mean"), ValueError, "basis must be one of 'typical', 'floor', got 'mean'"),
    (lambda: made(target_epsilon=0.1, basis="floor"), ValueError, "needs ell, got ell = None: pass the smallest"),
    (lambda: made(target_epsilon=0.1, basis="floor", ell=2), ValueError, r"ell must be .* \(0, 1\], got 2.0"),
    (lambda: made(ell=0.1), ValueError, "ell is used for target_epsilon .* only, got ell = 0.1: leave it out"),
    (lambda: made(accuracy="low"), ValueError, "accuracy must be one of 'full', 'half', got 'low'"),
    (lambda: made(dtype=torch.int32), TypeError, "dtype must be .*, got torch.int32: float32"),
    (lambda: made(spectrum="flat"), TypeError, "spectrum must be singular values or a matrix, got str: pass"),
    (lambda: made(spectrum=[]), ValueError, r"spectrum must be .* got shape \(0,\): pass a 1-D array"),
    (lambda: made(spectrum=np.ones((2, 2, 2))), ValueError, r"spectrum must be .* got shape \(2, 2, 2\)"),
    (lambda: made(spectrum=[1.0, math.nan]), ValueError, "spectrum must be finite, got NaN or infinity: leave"),
    (lambda: made(spectrum=[1.0, -1.0]), ValueError, "none negative and one positive, got -1 to 1: pass"),
    (lambda: made(spectrum=[0.0]), ValueError, "none negative and one positive, got 0 to 0"),
    (lambda: made(spectrum=np.ones(49)), ValueError, r"at most min\(m, n\) = 48 values, got 49: pass"),
    (lambda: made(spectrum=np.ones((3, 4))), ValueError, r"must have shape \(48, 96\), got \(3, 4\): pass"),
    (lambda: plan((2, 3), calibration=fake((3, 2))), ValueError, r"of shape \(2, 3\), got one of \(3, 2\)"),
    (lambda: plan((2, 3), calibration=0.1), TypeError, "calibration must be a Calibration, got 0.1: leave it out"),
    (lambda: plan(Net(), spectrum=[1.0]), ValueError, "spectrum belongs to one shape, got one together with a network"),
    (lambda: plan(Net(), calibration=fake((2, 2))), ValueError, "calibration belongs to one shape, got one"),
    (lambda: plan(nn.LayerNorm(4)), ValueError, "model must have a matrix for Muon, got none: print"),
]


def test_bad_input_names_rule_value_and_way_out():
    for run, error, message in BAD:
        with pytest.raises(error, match=message):
            run()


# The benchmark and its committed outcome


@pytest.mark.slow
def test_the_benchmark_runs_and_says_how_it_was_started():
    program = [sys.executable, str(ROOT / "benchmarks/planner.py"), "--quick"]
    report = json.loads(subprocess.run(program, check=True, capture_output=True, text=True, timeout=600).stdout)
    assert report["command"] == "python benchmarks/planner.py --quick"
    assert len(report["rows"]) == report["summary"]["shapes"] == 2
    for row in report["rows"]:
        assert row["slower_than_best"] >= 1
        assert row["alignment"] >= report["target_alignment"]


@pytest.mark.parametrize(("name", "options"), [("planner.json", " --threads 2"), ("planner_one_thread.json", "")])
def test_the_committed_outcomes_are_of_the_shapes_that_the_seed_draws_and_meet_their_aims(name, options):
    report = json.loads((ROOT / "results" / name).read_text())
    benchmark = runpy.run_path(str(ROOT / "benchmarks/planner.py"))
    assert report["command"] == f"python benchmarks/planner.py{options}"
    shapes = [list(shape) for shape in benchmark["drawn"](benchmark["SHAPES"], benchmark["SIDES"])]
    assert [row["shape"] for row in report["rows"]] == shapes
    errors = [abs(row["predicted_ms"] / row["measured_ms"] - 1) for row in report["rows"]]
    within = sum(row["measured_ms"] <= 1.1 * row["best_ms"] for row in report["rows"])
    assert report["summary"]["median_error"] == pytest.approx(statistics.median(errors))
    assert report["summary"]["within_10_percent_of_best"] == within
    assert len(shapes) == 10
    assert statistics.median(errors) <= 0.25
    assert within >= 9


@pytest.mark.usefixtures("faked")
def test_a_plan_of_a_network_sets_the_orthogonalizer_of_each_shape():
    net = nn.Sequential(nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3))
    found = plan(net, target_alignment=0.9)
    split = split_params(net, by="shape")
    optimizer = MuonWithAux(Muon(split.matrices), torch.optim.AdamW(split.rest))
    found.apply(optimizer)
    by_shape = {p.shape: p.orthogonalizer().plain() for p, _ in found.plans}
    assert [group["orthogonalizer"] for group in optimizer.muon.param_groups] == [by_shape[16, 12], by_shape[16, 16]]
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()


@pytest.mark.usefixtures("faked")
def test_a_plan_of_a_network_refuses_groups_of_several_shapes_and_changes_none():
    net = nn.Sequential(nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 3))
    found, optimizer = plan(net, target_alignment=0.9), Muon(split_params(net).matrices)
    before = [group["orthogonalizer"] for group in optimizer.param_groups]
    with pytest.raises(
        ValueError, match=r"got group 0 with \[\(16, 12\), \(16, 16\)\]: make the groups by split_params"
    ):
        found.apply(optimizer)
    assert [group["orthogonalizer"] for group in optimizer.param_groups] == before


@pytest.mark.usefixtures("faked")
def test_a_plan_that_is_not_met_ends_in_exit_code_1(capsys):
    for target, code in (("0.9", 0), ("0.9999999999", 1)):
        assert main(["plan", "--shape", "8x12", "--target-alignment", target]) == code
        assert ("not_met" in capsys.readouterr().out) == bool(code)
