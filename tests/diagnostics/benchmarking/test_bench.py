"""The benchmark of a device finds wrong results before it times anything, and says what it left out."""

from __future__ import annotations

import json

import pytest
import torch

from muonlab.cli.app import main
from muonlab.diagnostics.benchmarking import bench, correctness
from muonlab.diagnostics.benchmarking.timing import compare
from muonlab.orthogonalize.crossover import Gpu, multiplies
from tests.reference.tensor_cores import TensorCores

QUICK = {"width": 16, "layers": 1, "rounds": 1}


def test_a_cpu_passes_in_every_dtype_and_both_parts_are_timed():
    report = bench("cpu", **QUICK)
    assert report["status"] == "passed"
    checked = {(row["what"], row["dtype"]) for row in report["correct"]}
    dtypes = ("float64", "float32", "float16", "bfloat16")
    assert checked >= {(what, dtype) for what in ("products", "orthogonalized matrices") for dtype in dtypes}
    assert all(0 <= row["error"] <= row["allowed"] for row in report["correct"])
    step = report["times"][1]
    assert set(step["median_ms"]) >= {"muonlab", "muonlab, as torch.optim.Muon"}
    assert {*step["median_ms"], *report["left_out"]} >= {"torch.optim.Muon", "muon-optimizer", "optimuon"}
    assert step["speedup_of_muonlab"]["muonlab"] == 1


def test_a_wrong_product_or_direction_fails_and_nothing_is_timed(monkeypatch):
    def gram_of_part(X, *, out):
        return out.copy_(X[..., :-1] @ X[..., :-1].mT)

    def one_step_less(M, schedule, **options):
        return torch.zeros_like(M) if options else real(M, schedule)

    real = correctness.newton_schulz
    for name, wrong in (("gram", gram_of_part), ("newton_schulz", one_step_less)):
        with monkeypatch.context() as patch:
            patch.setattr(correctness, name, wrong)
            report = bench("cpu", **QUICK)
        assert report["status"] == "failed"
        assert report["times"] == []
        failed = {row["what"] for row in report["correct"] if not row["ok"]}
        assert failed == {"products" if name == "gram" else "orthogonalized matrices"}
        assert len([row for row in report["correct"] if not row["ok"]]) == len(correctness.DTYPES)


def test_tf32_is_allowed_its_rounding_where_it_is_on(monkeypatch):
    cpu = torch.device("cpu")
    with TensorCores(tf32=True):
        assert not all(row["ok"] for row in correctness.products(cpu, torch.float32))
        monkeypatch.setattr(correctness, "product_roundoff", lambda *_: 2.0**-11)
        rows = correctness.products(cpu, torch.float32)
    assert all(0.02 < row["error"] <= 1 for row in rows)


def test_the_kernels_for_gpus_are_among_what_is_checked_there():
    gpu = Gpu("cuda", (8, 0))
    for dtype in (torch.float16, torch.bfloat16):
        for b, m, n in correctness.KERNEL_SHAPES:
            assert multiplies(gpu, "auto", torch.empty(b, m, n, dtype=dtype, device="meta"))
            assert multiplies(gpu, "auto", torch.empty(b, m, m, dtype=dtype, device="meta"))


def test_a_result_that_is_not_finite_fails():
    assert not correctness._row("products", torch.float32, float("nan"), 1.0)["ok"]
    rows = [correctness._row("products", torch.float32, error, 1.0) for error in (0.5, float("nan"), 0.9)]
    assert correctness.worst(rows)["error"] is None


def test_the_ratio_is_that_of_the_side_over_muonlab():
    def work(size):
        A = torch.ones(size, size)
        return lambda: A @ A

    times = compare("products", {"muonlab": work(64), "larger": work(512)}, 9, torch.device("cpu"))
    assert times["speedup_of_muonlab"]["larger"] > 5


def test_the_command_prints_a_table_writes_a_file_and_refuses_a_device_that_is_not_there(tmp_path, capsys):
    path = tmp_path / "bench.json"
    assert main(["bench", "--width", "16", "--layers", "1", "--rounds", "1", "--out", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "orthogonalized matrices" in shown
    assert f"Written to {path}" in shown
    written = json.loads(path.read_text())
    assert written["status"] == "passed"
    assert written["hardware"]["torch"] == torch.__version__
    assert main(["bench", "--device", "cuda:77"]) == 2
    assert "device must be one that torch finds here, got 'cuda:77'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        bench("cpu", rounds=0)
