from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pytest

from muonlab.lab.cell_context import Stopped
from muonlab.lab.problems import definitions as problems
from muonlab.lab.problems.cell import FIXED_BOUNDS, MethodName, ProblemName, TheorySpec, _row, measure
from muonlab.lab.problems.inequalities import Inequality
from muonlab.lab.problems.runs import METHODS, run
from tests.lab.notes import Notes


def test_the_methods_and_problems_are_those_of_the_diagnostics():
    assert get_args(MethodName) == tuple(METHODS)
    assert set(get_args(ProblemName)) == {"random_wells", "random_quadratic", *problems.FAMILIES}


@pytest.mark.parametrize("method", ["sgdm", "muon_q3", "muon_svd", "jordan"])
@pytest.mark.parametrize("noise", [{}, {"noise": "signs", "sigma": 1.0, "runs": 2}])
def test_a_cell_writes_every_inequality_and_none_is_violated(method, noise):
    desk, spec = Notes(), TheorySpec(problem="decaying", method=method, steps=12, **noise)
    summary = measure(spec, desk)
    problem = problems.decaying(4).with_noise(spec.sigma, noise.get("noise", "gaussian"))
    one = run(problem, METHODS[method], T=12, seeds=spec.runs)
    assert [row["name"] for row in desk.rows] == [*one.certain, *one.expected]
    assert {row["kind"] for row in desk.rows} <= {"certain", "expected"}
    assert summary["violated"] == 0
    assert summary["inequalities"] == len(desk.rows)
    assert summary["measured"] == pytest.approx(one.averages.mean(), rel=1e-12)
    assert summary["least_slack"] == min(row["slack"] for row in desk.rows)
    fixed = {name: one.ratio(name) for name in one.expected if name in FIXED_BOUNDS}
    assert summary["bound_over_measured"] == pytest.approx(min(fixed.values()), rel=1e-12)
    assert fixed[summary["bound"]] == min(fixed.values())
    assert desk.seen[-1] == (1, 1)
    json.dumps([summary, desk.rows], allow_nan=False)


def test_bounds_that_take_numbers_from_the_run_are_not_counted_as_fixed():
    told: set[str] = set()
    for method in METHODS.values():
        told |= set(run(problems.bowl(4).with_noise(1.0), method, T=50).expected)
    told = {name for name in told if not name.endswith(("_tracking", "_rms", "_after")) and name != "run"}
    assert told == set(FIXED_BOUNDS)


def test_a_row_shows_the_entry_with_the_least_slack():
    claim = Inequality(np.array([[1.0, 4.0], [2.0, 3.0]]), {"a": np.array([[4.0, 5.0], [2.5, 5.0]])})
    row = _row("name", "certain", claim)
    assert (row["measured"], row["bound"], row["slack"], row["held"]) == (4.0, 5.0, 0.2, True)


def test_a_violated_inequality_is_shown_as_one():
    row = _row("name", "expected", Inequality(np.asarray(2.0), {"a": np.asarray(1.5)}))
    assert (row["measured"], row["bound"], row["slack"], row["held"]) == (2.0, 1.5, -0.25, False)


def test_the_seed_moves_the_noise_and_nothing_else():
    noisy = {"problem": "bowl", "noise": "gaussian", "sigma": 1.0, "steps": 5}
    first, second, again = (measure(TheorySpec(**noisy, seed=seed), Notes()) for seed in (0, 1, 0))
    assert first == again
    assert first["measured"] != second["measured"]
    assert first["eta"] == second["eta"]


def test_a_cell_that_is_asked_to_stop_stops():
    with pytest.raises(Stopped):
        measure(TheorySpec(steps=1), Notes(stopping=True))


@pytest.mark.parametrize("settings", [{"sigma": 1.0}, {"noise": "signs"}])
def test_noise_and_its_size_go_together(settings):
    with pytest.raises(ValueError, match=r"sigma must be 0 exactly where noise is none, got .*: change one of them"):
        TheorySpec(**settings)


def test_another_device_than_a_cpu_is_refused():
    with pytest.raises(ValueError, match="device must be cpu for float64 problems this small, got 'cuda': leave"):
        TheorySpec(device="cuda")


@pytest.mark.parametrize("name", ["batch_size", "rank", "steps", "runs"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0: pass 1 or more"):
        TheorySpec(**{name: 0})
