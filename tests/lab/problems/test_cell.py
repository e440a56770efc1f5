from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pytest

from muonlab.lab.cell_context import Stopped
from muonlab.lab.problems import definitions as problems
from muonlab.lab.problems.cell import (
    FIXED_BOUNDS,
    MethodName,
    ProblemName,
    TheorySpec,
    inequality_row,
    measure_inequalities,
)
from muonlab.lab.problems.inequalities import Inequality
from muonlab.lab.problems.runs import METHODS, run_method
from tests.lab.notes import Notes


def test_the_names_of_a_spec_are_those_of_methods_and_problems():
    assert get_args(MethodName) == tuple(METHODS)
    assert set(get_args(ProblemName)) == {"random_wells", "random_quadratic", "canyon", *problems.FAMILIES}


@pytest.mark.parametrize("method", ["sgdm", "muon_q3", "muon_svd"])
@pytest.mark.parametrize("noise", [{}, {"noise": "signs", "sigma": 1.0, "runs": 2}])
def test_a_cell_writes_every_inequality_and_none_is_violated(method, noise):
    context, spec = Notes(), TheorySpec(problem="decaying", method=method, steps=12, **noise)
    summary = measure_inequalities(spec, context)
    problem = problems.decaying(4).with_noise(spec.sigma, noise.get("noise", "gaussian"))
    run = run_method(problem, METHODS[method], T=12, seeds=spec.runs)
    assert [row["name"] for row in context.rows] == [*run.certain, *run.expected]
    assert {row["kind"] for row in context.rows} <= {"certain", "expected"}
    assert summary["violated"] == 0
    assert summary["inequalities"] == len(context.rows)
    assert summary["measured"] == pytest.approx(run.averages.mean(), rel=1e-12)
    assert summary["least_slack"] == min(row["slack"] for row in context.rows)
    fixed = {name: run.ratio(name) for name in run.expected if name in FIXED_BOUNDS}
    assert summary["bound_over_measured"] == pytest.approx(min(fixed.values()), rel=1e-12)
    assert fixed[summary["bound"]] == min(fixed.values())
    assert context.seen[-1] == (1, 1)
    json.dumps([summary, context.rows], allow_nan=False)


def test_cells_that_need_theorems_a_to_c_take_every_setting_of_their_spec():
    default = {"lr_schedule": "cosine", "momentum_form": "ema", "nesterov": True}
    for settings, problem in (
        ({"problem": "canyon", "rank": 6, "lr_schedule": "wsd"}, problems.canyon(6, T=12)),
        ({"problem": "target", "weight_decay": 0.2, **default}, problems.target(4)),
        ({"problem": "bowl", "noise": "pareto", "sigma": 1.0, "runs": 3}, problems.bowl(4).with_noise(1.0, "pareto")),
    ):
        context, spec = Notes(), TheorySpec(method="muon_q2", steps=12, **settings)
        summary = measure_inequalities(spec, context)
        options = {key: value for key, value in settings.items() if key in (*default, "weight_decay")}
        run = run_method(problem, METHODS["muon_q2"], T=12, seeds=spec.runs, **options)
        assert summary["measured"] == pytest.approx(run.averages.mean(), rel=1e-12)
        assert (summary["violated"], summary["bound"]) == (0, "trajectory")
        assert summary["bound_over_measured"] == pytest.approx(run.ratio("trajectory"), rel=1e-12)
        names = {row["name"] for row in context.rows}
        assert ("trajectory_gap" in names) == bool(spec.weight_decay)
        json.dumps([summary, context.rows], allow_nan=False)


def test_bounds_that_take_numbers_from_the_run_are_not_counted_as_fixed():
    names: set[str] = set()
    for method in METHODS.values():
        for kind in ("constant", "linear"):
            names |= set(run_method(problems.bowl(4).with_noise(1.0), method, T=20, lr_schedule=kind).expected)
    fixed = {name for name in names if not name.endswith(("_tracking", "_rms", "_after")) and name != "run"}
    assert fixed == set(FIXED_BOUNDS)


def test_a_row_shows_the_entry_with_the_least_slack_and_whether_the_inequality_held():
    inequality = Inequality(np.array([[1.0, 4.0], [2.0, 3.0]]), {"a": np.array([[4.0, 5.0], [2.5, 5.0]])})
    row = inequality_row("name", "certain", inequality)
    assert (row["measured"], row["bound"], row["slack"], row["held"]) == (4.0, 5.0, 0.2, True)
    row = inequality_row("name", "expected", Inequality(np.asarray(2.0), {"a": np.asarray(1.5)}))
    assert (row["measured"], row["bound"], row["slack"], row["held"]) == (2.0, 1.5, -0.25, False)


def test_the_seed_moves_the_noise_and_nothing_else():
    noisy = {"problem": "bowl", "noise": "gaussian", "sigma": 1.0, "steps": 5}
    first, second, again = (measure_inequalities(TheorySpec(**noisy, seed=seed), Notes()) for seed in (0, 1, 0))
    assert first == again
    assert first["measured"] != second["measured"]
    assert first["eta"] == second["eta"]


def test_a_cell_that_is_asked_to_stop_stops():
    with pytest.raises(Stopped):
        measure_inequalities(TheorySpec(steps=1), Notes(stopping=True))


def test_settings_that_contradict_each_other_are_refused():
    for settings, message in (
        ({"sigma": 1.0}, r"sigma must be 0 exactly when noise is none, got .*: change one of them"),
        ({"noise": "signs"}, r"sigma must be 0 exactly when noise is none, got .*: change one of them"),
        ({"noise": "pareto", "sigma": 1.0, "batch_size": 2}, "pareto noise needs a batch_size of 1, got 2: omit it"),
        ({"device": "cuda"}, "device must be cpu for float64 problems this small, got 'cuda': omit it"),
        *(({name: 0}, f"{name} must be at least 1, got 0") for name in ("batch_size", "rank", "steps", "runs")),
    ):
        with pytest.raises(ValueError, match=message):
            TheorySpec(**settings)
