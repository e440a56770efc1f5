"""The kernels compiled for GPUs that are absent: tensor instructions, no spills, memory and registers within limits."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
GUIDE = ROOT / "docs" / "guides" / "gpus.md"
SHARED = {"sm_80": 163, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_120": 99, "gfx942": 64}
"""Kilobytes of shared memory that a block may use, by the vendors' programming guides."""

TENSOR = {
    "sm_80": "mma.sync", "sm_89": "mma.sync", "sm_90": "wgmma.mma_async", "sm_100": "tcgen05.mma",
    "sm_120": "mma.sync", "gfx942": "v_mfma",
}  # fmt: skip


def committed():
    return json.loads((ROOT / "results" / "kernels.json").read_text(encoding="utf-8"))


def within_limits(row):
    """Return what is wrong with a row of results/kernels.json."""
    target, half = row["target"], row["dtype"] != "float32"
    product = row["kernel"] not in ("norms of parts", "scale and cast")
    wrong = []
    if row["spills"]:
        wrong.append("spills")
    if row["registers"] > (128 if target == "sm_90" else 232):
        wrong.append("registers")
    if row["shared_bytes"] > SHARED[target] * 1024:
        wrong.append("shared memory")
    if product and half and row["instructions"].get(TENSOR[target], 0) < 4:
        wrong.append("no tensor instructions")
    if not row["loads_of_16_bytes"] or row["narrow_copies"]:
        wrong.append("copies of less than 16 bytes")
    return wrong


def test_every_kernel_keeps_within_the_limits_of_every_gpu_by_the_committed_result():
    rows = committed()["rows"]
    assert len(rows) == 6 * 3 * len(SHARED)
    assert [
        (row["target"], row["kernel"], row["dtype"], within_limits(row)) for row in rows if within_limits(row)
    ] == []


def test_the_limits_refuse_a_kernel_that_breaks_them():
    row = next(row for row in committed()["rows"] if row["target"] == "sm_90")
    for change in (
        {"spills": 8}, {"registers": 129}, {"shared_bytes": 233_000}, {"instructions": {"mma.sync": 64}},
        {"loads_of_16_bytes": 0}, {"narrow_copies": 4},
    ):  # fmt: skip
        assert len(within_limits({**row, **change})) == 1, change


def test_the_table_of_the_guide_is_the_committed_result():
    page = GUIDE.read_text(encoding="utf-8")
    rows = {(row["target"], row["kernel"], row["dtype"]): row for row in committed()["rows"]}
    table = re.findall(r"^\| (sm_\d+|gfx942) \| (.+?) \| (\w+) \| (\d+) \| (\d+) \| (\d+) KB \| (.+?) \|$", page, re.M)
    assert len(table) == 3 * len(SHARED)
    for target, kernel, dtype, registers, spills, shared, instructions in table:
        row = rows[target, kernel, dtype]
        count = ", ".join(f"{number} {name}" for name, number in row["instructions"].items()) or "–"
        expected = (row["registers"], row["spills"], -(-row["shared_bytes"] // 1024), count)
        assert (int(registers), int(spills), int(shared), instructions) == expected, (target, kernel)


@pytest.mark.slow
@pytest.mark.kernels("triton")
def test_the_compiler_still_gives_the_committed_result():
    benchmark = benchmark_module()
    rows = {(row["target"], row["kernel"]): row for row in committed()["rows"] if row["dtype"] == "bfloat16"}
    for name, target in benchmark.TARGETS.items():
        if name in ("sm_89", "sm_120"):
            continue  # the instructions of sm_80
        for kernel_name, kernel, named, options in benchmark.cases(torch.bfloat16, target):
            if kernel_name not in ("X Xᵀ", "α A B + β C", "scale and cast"):
                continue
            found = benchmark.compiled(kernel, named, target, options)
            row = {"target": name, "kernel": kernel_name, "dtype": "bfloat16", **found}
            assert row == rows[name, kernel_name]


@pytest.mark.slow
@pytest.mark.kernels("triton")
def test_operands_are_widened_in_the_interpreter_alone():
    import triton

    from muonlab.orthogonalize.kernels import symmetric_kernel

    assert symmetric_kernel.INTERPRETED is False
    benchmark = benchmark_module()
    X = torch.empty(2, 512, 512, dtype=torch.bfloat16, device="meta")
    tile = symmetric_kernel.Tile(64, 32, warps=4, stages=2)
    _, named = symmetric_kernel.arguments(X, X.mT, None, None, X, 1.0, 0.0, "ieee", tile)
    for widen, dtype in ((named["WIDEN"], "bf16"), (True, "f32")):
        source = benchmark.source(symmetric_kernel.multiply_tile, named | {"WIDEN": widen})
        options = symmetric_kernel.options(tile)
        text = triton.compile(source, target=benchmark.TARGETS["sm_80"], options=options).asm["ttir"]
        assert re.search(rf"tt\.dot .*tensor<64x32x{dtype}>", text), dtype


class ImaginedDriver:
    """A driver of Triton with a device that is not there."""

    def __init__(self, target):
        self.get_current_target = lambda: target
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda _: 0


@pytest.mark.slow
@pytest.mark.kernels("triton")
def test_the_launches_compile_what_the_benchmark_compiles(monkeypatch, tmp_path):
    import triton

    # the compiler's cache may have the same kernel from another checkout, with its path in the debug information
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from muonlab.orthogonalize.kernels import prescale_kernel, symmetric_kernel

    benchmark, launched = benchmark_module(), []

    def compile_only(kernel):
        run = kernel.run
        monkeypatch.setattr(
            kernel, "run", lambda *a, warmup, **named: launched.append(run(*a, warmup=not warmup, **named))
        )

    target = benchmark.TARGETS["sm_80"]
    compiled = [
        triton.compile(benchmark.source(kernel, named), target=target, options=options).asm["ptx"]
        for name, kernel, named, options in benchmark.cases(torch.bfloat16, target)
        if name in ("α A B + β C", "norms of parts", "scale and cast")
    ]
    for kernel in (symmetric_kernel.multiply_tile, prescale_kernel.measure_kernel, prescale_kernel.scale_kernel):
        compile_only(kernel)
    X = torch.empty(2, 4096, 16384, dtype=torch.bfloat16, device="meta")
    R = torch.empty(2, 4096, 4096, dtype=torch.bfloat16, device="meta")
    monkeypatch.setattr(triton.runtime.driver, "_active", ImaginedDriver(target))
    symmetric_kernel.launch(R, R.mT, R, None, R, 1.0, 0.5, "ieee")
    norms = torch.empty(2, prescale_kernel.PARTS, 2, device="meta")
    prescale_kernel.launch(X, False, norms, torch.empty_like(X))
    assert [kernel.asm["ptx"] for kernel in launched] == compiled


def benchmark_module():
    spec = importlib.util.spec_from_file_location("kernels_benchmark", ROOT / "benchmarks" / "kernels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
