"""A cell of lr-by-steps: the same training run with several learning rates."""

from __future__ import annotations

import statistics

import pytest

from muonlab.lab.cell_context import Stopped
from muonlab.lab.lr_sweep import SweepSpec, sweep
from muonlab.lab.models import build
from muonlab.lab.spec import Spec
from muonlab.lab.studies import studies
from muonlab.lab.training.loop import train
from muonlab.lab.training.recipe import build_optimizer
from tests.lab.tiny import SPEC, Bench

SETTINGS = {name: getattr(SPEC, name) for name in ("batch_size", "steps", "evaluate_every", "train", "test")}
SWEEP = SweepSpec(**SETTINGS, lr=0.02, lr_count=3, momentum=0.8, record_every=4, q=1)


def alone(lr, folder):
    """The rows of a plain training run with one of the rates."""
    own = {name: value for name, value in SWEEP.to_dict().items() if name != "lr_count"}
    context = Bench(folder)
    train(Spec(**{**own, "lr": lr}), context)
    return context.rows


def test_each_rate_is_the_training_run_that_it_would_be_alone(tmp_path):
    folder = tmp_path / "cell"
    folder.mkdir()
    context = Bench(folder)
    summary = sweep(SWEEP, context)
    rows = context.rows["metrics"]
    assert list(context.rows) == ["metrics"]
    assert [row["lr"] for row in rows] == [0.02, 0.04, 0.08]
    for row in rows:
        own = alone(row["lr"], tmp_path)
        last = own["metrics"][-1]
        for name in ("train_loss", "test_loss", "test_accuracy"):
            assert row[f"final_{name}"] == last[name]
        assert (row["step"], row["event"]) == (SPEC.steps, "rate")
        whole = [one for one in own["certificates"] if one["event"] == "whole"]
        assert whole[0]["step"] == 1  # there the momentum is the gradient; it does not count
        for name in ("descent", "op_norm"):
            assert row[name] == pytest.approx(statistics.fmean(one[name] for one in whole[1:]), rel=1e-12)
    best = min(rows, key=lambda row: row["final_train_loss"])
    assert summary == {"rates": 3, "best_lr": best["lr"]} | {
        name: best[name] for name in ("final_train_loss", "final_test_loss", "final_test_accuracy")
    }
    assert list(folder.iterdir()) == []  # no checkpoints and no weights


def test_only_the_main_optimizer_has_another_rate():
    for lr in SWEEP.rates:
        spec = SWEEP.run_spec(lr)
        assert type(spec) is Spec
        optimizer = build_optimizer(spec, build(spec.model))
        main, rest = optimizer.muon.param_groups, optimizer.aux.param_groups
        assert {(group["lr"], group["momentum"]) for group in main} == {(lr, 0.8)}
        assert {(group["lr"], group["momentum"]) for group in rest} == {(0.08, 0.7)}


def test_a_sweep_that_is_asked_to_stop_stops_at_once_and_writes_no_half_rate(tmp_path):
    context = Bench(tmp_path, stop_after=1)
    with pytest.raises(Stopped):
        sweep(SWEEP, context)
    assert context.rows.get("metrics", []) == []


def test_without_recorded_steps_a_row_has_no_descent(tmp_path):
    context = Bench(tmp_path)
    sweep(SWEEP.changed({"record_every": 0, "lr_count": 1}), context)
    assert not {"descent", "op_norm"} & set(context.rows["metrics"][0])


def test_settings_that_a_sweep_cannot_have_are_refused():
    for settings, message in (
        ({"aux_lr": None}, "a sweep must fix aux_lr, got none: set it"),
        ({"aux_momentum": None}, "a sweep must fix aux_momentum, got none: set it"),
        ({"lr_count": 0}, "lr_count must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            SweepSpec(**settings)


def test_the_cells_of_the_study_differ_in_network_optimizer_momentum_and_seed_only():
    cells = studies()["lr-by-steps"].cells("small")
    first = cells[0].spec.to_dict()
    varied = {name for cell in cells for name, value in cell.spec.to_dict().items() if value != first[name]}
    assert varied == {"dataset", "train", "test", "optimizer", "q", "momentum", "seed"}
    assert {cell.spec.q for cell in cells if cell.spec.optimizer == "muon"} == {1, 2, 3, 5}
    assert len({cell.spec.rates for cell in cells}) == 1
