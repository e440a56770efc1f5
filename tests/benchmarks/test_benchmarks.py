"""The benchmarks of recorder and AutoSteps: they run, and their committed results say what the documentation says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
