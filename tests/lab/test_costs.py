from __future__ import annotations

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from muonlab import diagnostics
from muonlab.lab import costs, run
from muonlab.lab.cell_context import Stopped
from muonlab.lab.costs import GEMM_SHAPE, SVD_SHAPE, CostSpec, horner_steps, measure_costs
from muonlab.lab.runner.timing import on_clock
from muonlab.orthogonalize import newton_schulz
from muonlab.polynomials import taylor
from muonlab.theory import wall_clock_ratio
from tests.lab.notes import Notes
from tests.report.made import cell


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (16, 16)])
@pytest.mark.parametrize("kappa", [1, 2, 5])
def test_horner_steps_are_the_steps_of_newton_schulz(shape, kappa):
    M = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = newton_schulz(M, taylor(kappa), steps=3)
    torch.testing.assert_close(horner_steps(M, taylor(kappa).coefficients, 3), expected, atol=1e-12, rtol=1e-10)


def test_a_cell_compares_the_lemma_with_the_clock():
    context, spec = Notes(), CostSpec(m=48, n=96, repeats=3)
    summary = measure_costs(spec, context)
    timed = [row for row in context.rows if row["event"] == "cost"]
    assert [row["method"] for row in timed] == ["svd", "horner", "ours", "polar"]
    for clock in ("", "cpu_"):
        rows = [{name: row[f"{clock}{name}"] for name in ("least", "seconds", "most")} for row in timed]
        assert all(0 < row["least"] <= row["seconds"] <= row["most"] for row in rows)
        seconds = {row["method"]: row[f"{clock}seconds"] for row in timed}
        numbers = {name.removeprefix(clock): value for name, value in summary.items() if name.startswith(clock)}
        assert all(numbers[f"{method}_seconds"] == value for method, value in seconds.items())
        assert numbers["measured_ratio"] == seconds["svd"] / seconds["horner"]
        assert numbers["ratio_to_ours"] == seconds["svd"] / seconds["ours"]
        assert numbers["measured_over_predicted"] == numbers["measured_ratio"] / numbers["predicted_ratio"]
        assert numbers["predicted_ratio"] == wall_clock_ratio(
            48, 96, q=3, kappa=2,
            gemm_throughput=numbers["gemm_flops_per_second"], svd_throughput=numbers["svd_flops_per_second"],
        )  # fmt: skip
    assert context.seen[-1] == (3, 3)
    json.dumps([summary, context.rows], allow_nan=False)


class Times:
    """Clocks that stand still until they are moved, which an SVD does by 3 wall and 1 CPU seconds."""

    def __init__(self, monkeypatch):
        self.wall = self.cpu = 0.0
        svd = torch.linalg.svd
        monkeypatch.setattr(time, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(time, "process_time", lambda: self.cpu)
        monkeypatch.setattr(torch.linalg, "svd", lambda *a, **b: self.move(3.0, 1.0) or svd(*a, **b))

    def move(self, wall, cpu):
        self.wall, self.cpu = self.wall + wall, self.cpu + cpu


def test_each_number_is_of_the_clock_that_its_name_says(monkeypatch):
    times = Times(monkeypatch)
    monkeypatch.setattr(costs, "_methods", lambda _: {
        "svd": lambda: times.move(3.0, 1.0), "horner": lambda: times.move(1.0, 2.0),
        "ours": lambda: times.move(1.0, 4.0), "polar": lambda: times.move(1.0, 1.0),
    })  # fmt: skip
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda *a, **b: times.move(0.5, 0.25) or product(*a, **b))
    monkeypatch.setattr(diagnostics, "plan", lambda *_, **__: SimpleNamespace(frontier=()))
    summary = measure_costs(CostSpec(m=8, n=9, repeats=2), context := Notes())
    assert [(row["seconds"], row["cpu_seconds"]) for row in context.rows] == [(3, 1), (1, 2), (1, 4), (1, 1)]
    assert (summary["measured_ratio"], summary["cpu_measured_ratio"]) == (3.0, 0.5)
    assert (summary["ratio_to_ours"], summary["cpu_ratio_to_ours"]) == (3.0, 0.25)
    assert summary["cpu_gemm_flops_per_second"] == pytest.approx(2 * summary["gemm_flops_per_second"])
    assert summary["cpu_svd_flops_per_second"] == pytest.approx(3 * summary["svd_flops_per_second"])
    assert summary["cpu_predicted_ratio"] == pytest.approx(2 / 3 * summary["predicted_ratio"])
    assert (summary["seconds"], summary["cpu_seconds"]) == (times.wall, times.cpu)  # of all of it
    on_cpu = on_clock(cell("8×9", context.rows, summary=summary), "cpu")
    assert on_cpu.summary["measured_ratio"] == 0.5
    measured = [name for name in summary if not name.endswith("_shape") and name != "other_seconds"]
    assert {name for name in measured if not name.startswith("cpu_")} == {
        name.removeprefix("cpu_") for name in measured if name.startswith("cpu_")
    }


def test_a_cell_that_is_asked_to_stop_stops():
    with pytest.raises(Stopped):
        measure_costs(CostSpec(m=8, n=9, repeats=1), Notes(stopping=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_refused_before_any_cell(tmp_path):
    with pytest.raises(ValueError, match="device must be on this machine, got 'cuda'"):
        run("wall-clock", device="cuda", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_specs_load_no_torch():
    code = (
        "import sys, muonlab.lab.costs, muonlab.lab.problems.cell, muonlab.lab.paper, muonlab.lab.slopes; "
        "sys.exit(', '.join({'torch', 'numpy', 'datasets'} & set(sys.modules)) or None)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_bad_shapes_are_refused():
    for m, n in (GEMM_SHAPE, SVD_SHAPE, SVD_SHAPE[::-1]):
        with pytest.raises(ValueError, match=r"not be a shape on which throughputs are measured, got .*: choose"):
            CostSpec(m=m, n=n)
    for name in ("m", "n", "q", "kappa", "repeats"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0: pass 1 or more"):
            CostSpec(**{name: 0})
