from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from muonlab.lab.costs import GEMM_SHAPE, SVD_SHAPE, CostSpec, check, horner_steps, measure
from muonlab.lab.desk import Stopped
from muonlab.orthogonalize import newton_schulz
from muonlab.polynomials import taylor
from muonlab.theory import wall_clock_ratio
from tests.lab.notes import Notes


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (16, 16)])
@pytest.mark.parametrize("kappa", [1, 2, 5])
def test_horner_steps_are_the_steps_of_newton_schulz(shape, kappa):
    M = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = newton_schulz(M, taylor(kappa), steps=3)
    torch.testing.assert_close(horner_steps(M, taylor(kappa).coefficients, 3), expected, atol=1e-12, rtol=1e-10)


def test_a_cell_compares_the_lemma_with_the_clock():
    desk, spec = Notes(), CostSpec(m=48, n=96, repeats=3)
    summary = measure(spec, desk)
    timed = [row for row in desk.rows if row["event"] == "cost"]
    assert [row["method"] for row in timed] == ["svd", "horner", "ours", "polar"]
    assert all(row["least"] <= row["seconds"] <= row["most"] for row in timed)
    seconds = {row["method"]: row["seconds"] for row in timed}
    assert summary["measured_ratio"] == seconds["svd"] / seconds["horner"]
    assert summary["ratio_to_ours"] == seconds["svd"] / seconds["ours"]
    assert summary["predicted_ratio"] == wall_clock_ratio(
        48, 96, q=3, kappa=2,
        gemm_throughput=summary["gemm_flops_per_second"], svd_throughput=summary["svd_flops_per_second"],
    )  # fmt: skip
    assert desk.seen[-1] == (3, 3)
    json.dumps([summary, desk.rows], allow_nan=False)


def test_a_cell_has_the_frontier_of_the_planner():
    desk = Notes()
    measure(CostSpec(m=16, n=24, repeats=1), desk)
    ways = [row for row in desk.rows if row["event"] == "frontier"]
    assert ways
    assert all((row["m"], row["n"]) == (16, 24) for row in ways)
    assert [row["seconds"] for row in ways] == sorted(row["seconds"] for row in ways)
    assert [row["alignment"] for row in ways] == sorted(row["alignment"] for row in ways)


@pytest.mark.parametrize("shape", [GEMM_SHAPE, SVD_SHAPE, SVD_SHAPE[::-1]])
def test_a_shape_on_which_throughput_is_measured_is_not_predicted(shape):
    with pytest.raises(ValueError, match=r"another shape than the throughputs are measured on, got .*: the prediction"):
        CostSpec(m=shape[0], n=shape[1])


@pytest.mark.parametrize("name", ["m", "n", "q", "kappa", "repeats"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0: pass 1 or more"):
        CostSpec(**{name: 0})


def test_a_cell_that_is_asked_to_stop_stops():
    with pytest.raises(Stopped):
        measure(CostSpec(m=8, n=9, repeats=1), Notes(stopping=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_refused_before_any_cell():
    with pytest.raises(ValueError, match="device must be on this machine, got 'cuda'"):
        check(CostSpec(device="cuda"))


def test_the_specs_load_no_torch():
    code = (
        "import sys, muonlab.lab.costs, muonlab.lab.known_problems, muonlab.lab.paper, muonlab.lab.slopes; "
        "sys.exit(', '.join({'torch', 'numpy', 'datasets'} & set(sys.modules)) or None)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
