"""The kernels for GPUs in Triton's interpreter, on CPU tensors: right values, and wrong kernels are found out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GUIDE = ROOT / "docs" / "guides" / "gpus.md"
pytestmark = [pytest.mark.slow, pytest.mark.kernels("triton")]


@pytest.fixture(scope="module")
def found():
    """Everything that tests/orthogonalize/kernels/interpreted.py prints."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.orthogonalize.kernels.interpreted"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_product_is_symmetric_to_the_bit_and_within_its_rounding_bound_and_touches_nothing_else(found):
    products = found["products"]
    assert len(products) == 17 * 3 * 4 + 3
    assert f"{len(products)} products over 17 sizes" in GUIDE.read_text(encoding="utf-8")
    assert {name: ratio for name, ratio in products.items() if not ratio <= 1} == {}
    assert max(products.values()) > 0.9  # the bound is not loose


def test_the_numbering_reaches_every_tile_of_the_triangle_once(found):
    assert found["tiles"]["1447"]
    assert all(found["tiles"].values())


def test_the_prescale_rounds_twice_and_keeps_the_rules_of_unit_scale(found):
    prescales = found["prescales"]
    assert f"{len(prescales)} prescales, from" in GUIDE.read_text(encoding="utf-8")
    assert {"zero, NaN and infinity", "zero, NaN and infinity, paper", "the same bits times 2^50"} <= prescales.keys()
    assert {name: ratio for name, ratio in prescales.items() if not ratio <= 1} == {}


def test_wrong_kernels_fail_the_same_checks(found):
    faults = dict(found["faults"])
    assert not faults.pop("symmetric: none")
    assert not faults.pop("prescale: none")
    assert len(faults) == 19
    assert [name for name, noticed in faults.items() if not noticed] == []


def test_operators_pass_the_checks_of_torch_and_compile_to_one_node_each(found):
    operators = found["operators"]
    checked = [name for name in operators if name.startswith(("opcheck", "step", "in_place", "no_grad", "empty"))]
    assert len(checked) == 9
    assert all(operators[name] for name in checked)
    scale, product = "muonlab.scale_to_unit_norm.default", "muonlab.symmetric_matmul.default"
    assert operators["nodes"] == [scale, product, product]


def test_wrong_calls_are_refused_with_a_way_out(found):
    for name, message in (
        ("autograd", r"RuntimeError: symmetric_matmul has no derivative, .*: detach it, or use no_grad\(\)"),
        ("autograd, compiled", r"symmetric_matmul has no derivative"),
        ("autograd of the prescale", r"RuntimeError: scale_to_unit_norm has no derivative"),
        ("shape", r"ValueError: symmetric_matmul needs A \(b, m, k\).*, got \(2, 40, 70\), \(2, 40, 70\).*: transpose"),
        (
            "dtype",
            r"TypeError: symmetric_matmul needs tensors of one dtype, got torch.float32, torch.float16.*: convert",
        ),
        ("float64", r"TypeError: symmetric_matmul computes in float16.*, got torch.float64: convert it, or use torch"),
        ("scale", r"ValueError: scale must be float32 with one entry, or one per matrix.*shape \(3,\): use scale"),
        ("precision", r"ValueError: precision must be one of .*, got 'tf64'"),
        (
            "dimensions",
            r"ValueError: symmetric_matmul needs matrices or stacks .*, got \(1, 2, 40, 70\).*: use reshape",
        ),
        (
            "out of the prescale",
            r"ValueError: scale_to_unit_norm needs a dense out .*\(5600, 140, 2\): use torch.empty",
        ),
    ):
        assert re.search(message, found["operators"][f"error: {name}"]), name


def test_newton_schulz_through_the_kernels_is_as_accurate_as_through_torch(found):
    assert len(found["whole"]) == 8
    for name, row in found["whole"].items():
        assert row["kernels"] <= 1.2 * row["torch"], name
        assert max(row["segments"]) > 1, name
        assert row["products"] >= 2 * len(row["segments"]), name
        assert row["scalings"] == 1, name
