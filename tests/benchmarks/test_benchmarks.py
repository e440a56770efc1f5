"""The benchmarks run, compare the same work on both sides, and their committed results match the documentation."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.lab.tiny import SPEC

ROOT = Path(__file__).resolve().parents[2]


def run(name):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / name, "--quick"],
        capture_output=True, encoding="utf-8", timeout=900, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def result(name):
    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.data("mnist")
def test_the_recorder_benchmark_prints_what_recording_costs():
    (task,) = run("recorder.py")["tasks"]
    assert task["matrices"] == 2
    assert task["overhead_of_every_step"]["spectrum"] > 0.05  # eigenvalues at every step are not free
    assert task["overhead_at_the_default_cadence"]["median"] < task["overhead_of_every_step"]["spectrum"] / 5


@pytest.mark.slow
@pytest.mark.data("mnist")
def test_the_autosteps_benchmark_compares_losses_and_costs():
    (task,) = run("autosteps.py")["tasks"]
    ways = task["ways"]
    assert ways["quintic, q = 5"]["flops_over_q5"] == 1.0
    assert ways["quintic, q = 3"]["flops_over_q5"] < 1 < ways["quintic, q = 7"]["flops_over_q5"]
    assert all(0 < way["test_loss"]["mean"] < 2.3 for way in ways.values())
    assert ways["quintic, AutoSteps 0.95"]["changes"]


def test_recording_at_the_default_cadence_costs_at_most_five_per_cent_by_the_committed_result():
    report = result("recorder.json")
    assert [task["task"] for task in report["tasks"]] == ["mnist-mlp", "small-gpt"]
    for task in report["tasks"]:
        assert task["overhead_at_the_default_cadence"]["median"] <= 0.05


def test_autosteps_reached_the_loss_of_five_quintic_steps_for_less_by_the_committed_result():
    report, log = result("autosteps.json"), (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    assert [task["task"] for task in report["tasks"]] == ["mnist-mlp", "small-gpt"]
    rows = {name: [] for name in report["tasks"][0]["ways"]}
    for task, digits in zip(report["tasks"], (3, 3), strict=True):
        for name, way in task["ways"].items():
            rows[name] += [f"{way['test_loss']['mean']:.{digits}f}", f"{way['flops_over_q5']:.2f}"]
        found = task["ways"]["Polar Express for [0.01, 1], AutoSteps 0.75"]
        assert found["flops_over_q5"] < 0.85
        assert found["test_loss"]["minus_q5"] < -3 * found["test_loss"]["minus_q5_standard_error"]
        quintic = task["ways"]["quintic, AutoSteps 0.95"]
        assert quintic["flops_over_q5"] > 1.5  # no saving there, and the log says so
    for name in ("quintic, q = 5", "quintic, AutoSteps 0.8", "Polar Express for [0.01, 1], AutoSteps 0.9"):
        assert f"| {name} | {' | '.join(rows[name])} |" in log


def program(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_bare_loop_and_the_labs_give_the_same_weights(tmp_path, monkeypatch):
    loop = program("loop")
    spec = SPEC.changed({"train": None, "test": None, "steps": None, "epochs": 1000})
    models = []
    for module in (loop, importlib.import_module("muonlab.lab.training.loop")):
        real = module.build_model
        monkeypatch.setattr(module, "build_model", lambda *a, real=real: models.append(real(*a)) or models[-1])
    for updates in (loop.lab_updates(spec, tmp_path), loop.bare_updates(spec)):
        updates(5)
    lab, bare = models
    for p, q in zip(lab.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_the_comparison_reports_what_it_timed(tmp_path):
    found = program("loop").compare(SPEC.changed({"train": None, "test": None}), 2, 2, tmp_path)
    assert found["blocks"] == 2
    assert found["overhead"] == pytest.approx(found["milliseconds_lab"] / found["milliseconds_bare"] - 1)
