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


def run(name, *words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / name, *words, "--quick"],
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


@pytest.mark.slow
def test_the_heads_benchmark_compares_four_ways_from_the_same_start():
    ways = run("heads.py", ROOT / "README.md")["ways"]
    assert len({way["loss"] for way in ways.values()}) == len(ways) == 4
    assert all(0 < way["loss"] < 5 for way in ways.values())
    assert ways["three matrices"]["minus_three_matrices"] == [0.0]


@pytest.mark.slow
def test_the_benchmark_of_learning_rates_compares_three_ways_and_names_the_best_pair_of_each():
    (task,) = run("learning_rates.py")["tasks"]
    assert len(task["ways"]) == 3
    for way in task["ways"].values():
        assert way["best"] in way["grid"]
        assert way["best"]["mean"] == min(cell["mean"] for cell in way["grid"])
    assert {cell["lr"] == cell["aux_lr"] for cell in task["ways"]["AdamW alone"]["grid"]} == {True}


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


def test_the_factors_of_other_analyses_are_ordered_and_printed_as_committed():
    report = result("other_analyses.json")
    page = (ROOT / "docs" / "theory" / "other-analyses.md").read_text(encoding="utf-8")
    ratios = []
    for matrix in report["matrices"]:
        for way, found in matrix["ways"].items():
            assert_ordered(found)
            if not matrix["matrix"].endswith("256×2304"):
                ratios += [found[name] / found["alignment"] for name in ("spread", "additive") if way != "quintic q=1"]
            if way != "quintic q=1":
                names = ("alignment", "floor", "spread", "additive", "chi")
                assert f"| {matrix['matrix']} | {way} | {' | '.join(printed(found[name]) for name in names)} |" in page
    assert "30 to 90,000 times" in page
    assert 30 < min(ratios) < 33
    assert 85_000 < max(ratios) < 95_000
    for row in report["step_and_momentum"]:
        names = ("alignment_log_lr", "alignment_log_memory", "error_log_lr", "error_log_memory")
        cells = " | ".join(f"{row[name]:.2f}".replace("-", "−") for name in names)
        assert row["noise"] != 1.0 or row["rho"] == 1.0 or f"| {row['rho']} | {cells} |" in page
        assert row["alignment_log_lr"] >= 0 >= row["error_log_lr"]
        assert max(row["alignment_log_memory"], row["error_log_memory"]) <= 0


@pytest.mark.slow
def test_the_program_on_other_analyses_computes_ordered_factors():
    for matrix in run("other_analyses.py")["matrices"]:
        for found in matrix["ways"].values():
            assert_ordered(found)


@pytest.mark.slow
def test_the_program_on_trajectories_finds_no_violation():
    for theorem, kinds in run("trajectory.py")["theorems"].items():
        for kind, found in kinds.items():
            assert found["violations"] == 0, (theorem, kind)
            assert found["configurations"] == 30 == sum(part["configurations"] for part in found["compared"].values())


@pytest.mark.slow
@pytest.mark.data("mnist")
def test_the_certificate_of_a_run_applies_and_bounds_the_gradients_that_were_measured():
    found = run("run_certificate.py")
    for bound in found["certificate"].values():
        assert bound["status"] == "applies"
        assert bound["total"] > found["gradient norm, every tenth step"]["mean"]
        assert sum(bound["terms"].values()) == pytest.approx(bound["total"])
        assert bound["gap"]["nonnegative"]
    assert (found["last step"]["status"], found["last step"]["not covered"]) == ("holds", [])


@pytest.mark.slow
def test_the_attack_finds_no_share_above_one_and_the_terms_of_the_library():
    found = run("attack_bounds.py")
    assert (found["above one"], len(found["shares"])) == (0, 6)
    assert 0.9 < found["largest"] <= 1 + 1e-6


def test_the_tables_of_the_certificate_of_a_run_are_those_of_its_result():
    report = result("run_certificate.json")
    noisy, silent = report["certificate"]["with noise"], report["certificate"]["noise left out"]
    rows = [
        *((name, f"{noisy['terms'][name]:.2f}") for name in ("descent", "curvature")),
        ("drift", f"{noisy['terms']['drift']:.1f}"),
        ("noise (95 %)", f"{noisy['terms']['noise']:.1f}"),
        ("bound on the weighted average of the gradient norm", f"{noisy['total']:.1f}"),
        ("without the noise term", f"{silent['total']:.1f}"),
        ("Frank–Wolfe gap, nonnegative", f"{noisy['gap']['bound']:.1f}"),
    ]
    table = "\n".join(["| term | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
    paper = "\n".join(f"{name} & {value} \\\\" for name, value in rows[:5])
    norms, losses = report["gradient norm, every tenth step"], report["loss on the training set"]
    start, end, decrease = f"{losses[0]:.3f}", f"{losses[1]:.3f}", losses[0] - losses[1]
    measured = f"{norms['mean']:.2f} on average", f"{norms['least']:.2f} at least"
    for name in ("docs/log.md", "docs/guides/reading-a-certificate.md"):
        page = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        assert " ".join(table.split()) in page, name
        assert f"L = {report['estimates']['L']:.1f} and σ = {report['estimates']['sigma']:.1f}" in page, name
        assert start in page, name
        assert end in page, name
        assert measured[0] in page, name
    tex = (ROOT / "docs" / "paper" / "main.tex").read_text(encoding="utf-8")
    assert paper.replace("95 %", "95\\,\\%") in tex
    assert f"from {start} to {end}" in tex
    assert (noisy["status"], silent["status"]) == ("applies", "applies")
    assert report["estimates"]["note"].endswith("the certificate is an estimate, too")
    for bound, sigma in ((noisy, report["estimates"]["sigma"]), (silent, 0.0)):
        assert f"L = {report['estimates']['L']:g}, D = {decrease:g} and sigma = {sigma:g} are true" in bound["reason"]
    assert "with estimates it is an estimate of that bound" in " ".join(tex.split())


def test_the_shares_that_the_attack_found_are_printed_as_committed():
    report, log = result("attack_bounds.json"), (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    assert (report["above one"], report["largest"] - 1 < 6e-9) == (0, True)
    least = {
        name: {term: min(form[term] for form in forms.values()) for term in next(iter(forms.values()))}
        for name, forms in report["shares"].items()
    }
    names = {"A, run": "A, one run", "B, run": "B, one run", "B, expectation": "B, expectation",
             "A, expectation": "A, expectation, `f(W_0) − E f(W_T)` for D"}  # fmt: skip
    for key, name in names.items():
        cells = [f"{least[key][term]:.4f}" for term in ("curvature", "drift", "noise")]
        past = f"{least[key]['past noise']:.2f}".replace("-", "−") if "past noise" in least[key] else ""
        assert " ".join(f"| {' | '.join([name, *cells, past])} |".split()) in " ".join(log.split()), name
        assert min(least[key][term] for term in ("curvature", "drift", "noise")) > 0.998
    assert f"| A1 | {least['A1']['curvature']:.4f} | {least['A1']['drift']:.2f} | | |" in log
    assert f"{report['shares']['A, expectation']['ema']['past noise']:.3f} with an average of" in log
    lemma = [f"{found['constant']:.2f}" for found in report["shares"]["C, lemma"].values()]
    assert "{}, {} and {} at p = 1.2, 1.5, 1.8".format(*lemma) in log


def test_the_least_quotients_of_trajectories_and_what_was_compared_are_printed_as_committed():
    found = result("trajectory.json")["theorems"]
    log = " ".join((ROOT / "docs" / "log.md").read_text(encoding="utf-8").split())
    assert {part["violations"] for kinds in found.values() for part in kinds.values()} == {0}
    cells = {
        "Theorem A": ["1.00008", "1.002", "1.17"], "Corollary A1": ["", "", "1.28"],
        "Theorem B": ["1.0003", "1.25", "1.25"], "Theorem C": ["1.005", "1.45", "1.18"],
    }  # fmt: skip
    for name, printed_cells in cells.items():
        assert " ".join(f"| {' | '.join([name, *printed_cells])} |".split()) in log, name
        for kind, cell in zip(("run", "mean over seeds", "expectation"), printed_cells, strict=True):
            if cell:
                digits = len(cell.split(".")[1])
                assert f"{found[name.split()[1]][kind]['least']:.{digits}f}" == cell, (name, kind)
    seeds, exact = (found["B"][kind]["compared"] for kind in ("mean over seeds", "expectation"))
    counts = [part[name]["configurations"] for part in (seeds, exact) for name in ("gradient norms", "gap")]
    assert "in {} and by the Frank–Wolfe gap in {}, the exact expectation in {} and {}".format(*counts) in log
    tex = (ROOT / "docs" / "paper" / "main.tex").read_text(encoding="utf-8")
    assert f"in {counts[0]} and {counts[2]} configurations" in tex
    assert set(seeds) == set(exact) == {"gradient norms", "gap"}
    of_c = [found["C"][kind]["compared"]["gap"]["configurations"] for kind in ("mean over seeds", "expectation")]
    assert "{} and {} were compared by the gap".format(*of_c) in log


def assert_ordered(found):
    """1/alignment is at most every other factor, and largest over smallest singular value at most the additive one."""
    assert found["alignment"] * (1 + 1e-9) >= 1
    assert found["alignment"] <= min(found["floor"], found["spread"]) * (1 + 1e-6)
    assert found["additive"] is None or found["spread"] <= found["additive"] * (1 + 1e-6)
    assert found["chi"] is None or found["spread"] <= found["chi"] * (1 + 1e-6)


def printed(factor):
    """A factor with three digits, as the page has it."""
    if factor is None:
        return "–"
    if factor < 99.95:
        return f"{factor:.2f}" if factor < 9.995 else f"{factor:.1f}"
    return f"{float(f'{factor:.3g}'):,.0f}"


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
