"""Half precision and TF32: which dtype a device gets, how products round there, and how far results may be off."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from muonlab import newton_schulz
from muonlab.orthogonalize import arithmetic, iteration, products
from muonlab.orthogonalize.arithmetic import arithmetic_of, product_roundoff
from muonlab.orthogonalize.iteration import iterate
from muonlab.orthogonalize.rounding import MOST_CONCENTRATED, allowed_error, concentration_of, steepness
from muonlab.orthogonalize.segments import plan_segments, segment_flops
from muonlab.orthogonalize.workspace import Workspace
from muonlab.polynomials import Schedule, preset, taylor
from tests.orthogonalize.zoo import gaussian, with_spectrum, zoo
from tests.reference.orthogonalize import operator_error, schedule_on_singular_values
from tests.reference.tensor_cores import TensorCores

ROOT = Path(__file__).resolve().parents[2]
SCHEDULES = {
    "cubic x3": Schedule.repeat(taylor(1), 3),
    "quintic x5": Schedule.repeat(taylor(2), 5),
    "degree 7 x6": Schedule.repeat(taylor(3), 6),
    "jordan x5": preset("jordan").schedule(5),
    "polar_express x5, safe": preset("polar_express").schedule(5, safety="1.01"),
}
BY_NAME = {name.split()[0]: F for name, F in SCHEDULES.items()}
ROUNDS_LIKE = {"bfloat16": torch.bfloat16, "float16": torch.float16, "tf32": torch.float16}
DEFAULT = SCHEDULES["polar_express x5, safe"]
GPU = torch.device("cuda", 0)


@pytest.fixture
def matmul(monkeypatch):
    """Settings of torch.backends.cuda.matmul that a test may change, and a device of compute capability 8.0."""
    settings = SimpleNamespace(
        fp32_precision="none",
        allow_fp16_accumulation=False,
        allow_fp16_reduced_precision_reduction=False,
        allow_bf16_reduced_precision_reduction=False,
    )
    monkeypatch.setattr(torch.backends.cuda, "matmul", settings)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))  # noqa: ARG005
    return settings


# ---------------------------------------------------------------------------------------------- how products round


def test_tf32_is_noticed_where_it_is_on_and_the_device_has_it(matmul, monkeypatch):
    assert product_roundoff(torch.float32, GPU) == 2.0**-24
    matmul.fp32_precision = "tf32"
    assert product_roundoff(torch.float32, GPU) == 2.0**-11
    assert [product_roundoff(dtype, GPU) for dtype in (torch.bfloat16, torch.float16, torch.float64)] == [
        2.0**-8, 2.0**-11, 2.0**-53,
    ]  # fmt: skip
    for elsewhere in ("cpu", "mps", "meta"):
        assert product_roundoff(torch.float32, elsewhere) == 2.0**-24
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))  # noqa: ARG005
    assert product_roundoff(torch.float32, GPU) == 2.0**-24


def test_both_ways_to_ask_torch_for_tf32_are_noticed(monkeypatch):
    monkeypatch.setattr(arithmetic, "_has_bfloat16_tiles", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))  # noqa: ARG005
    before = torch.get_float32_matmul_precision()
    try:
        for precision, roundoff in (("high", 2.0**-11), ("medium", 2.0**-11), ("highest", 2.0**-24)):
            torch.set_float32_matmul_precision(precision)
            assert product_roundoff(torch.float32, GPU) == roundoff
            assert product_roundoff(torch.float32, "cpu") == 2.0**-24
        for allowed, roundoff in ((True, 2.0**-11), (False, 2.0**-24)):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            assert product_roundoff(torch.float32, GPU) == roundoff
    finally:
        torch.set_float32_matmul_precision(before)
    # torch before 2.9 has the old names only
    old = SimpleNamespace(allow_tf32=True)
    monkeypatch.setattr(torch.backends.cuda, "matmul", old)
    assert product_roundoff(torch.float32, GPU) == 2.0**-11


def test_a_cpu_with_tiles_of_bfloat16_rounds_to_it_only_if_torch_is_asked_to(monkeypatch):
    monkeypatch.setattr(arithmetic, "_has_bfloat16_tiles", lambda: True)
    before = torch.get_float32_matmul_precision()
    try:
        for precision, roundoff in (("medium", 2.0**-8), ("highest", 2.0**-24)):
            torch.set_float32_matmul_precision(precision)
            assert product_roundoff(torch.float32, "cpu") == roundoff
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_plan_follows_tf32_as_it_is_switched_on_and_off(matmul):
    def sizes(device):
        return [len(s) for s in plan_segments(DEFAULT, 512, 1536, torch.float32, "gram", "half", device)]

    assert sizes("cpu") == sizes(GPU) == [4, 1]
    matmul.fp32_precision = "tf32"
    assert sizes(GPU) == [len(s) for s in plan_segments(DEFAULT, 512, 1536, torch.float16, "gram", "half", GPU)]
    assert max(sizes(GPU)) == 2
    assert sizes("cpu") == [4, 1]
    matmul.fp32_precision = "ieee"
    assert sizes(GPU) == [4, 1]


def test_segments_planned_for_float32_lose_everything_under_tf32_and_those_planned_for_it_do_not(matmul):
    matmul.fp32_precision = "tf32"
    M = with_spectrum(64, 576, np.geomspace(1, 1e-6, 64))
    errors = {}
    for device in ("cpu", GPU):
        segments = plan_segments(DEFAULT, 64, 576, torch.float32, "gram", "half", device)
        O = torch.empty_like(M)
        with TensorCores(tf32=True):
            iterate(M, O, Workspace(torch.float32, M.device), segments, "frobenius")
        errors[device] = operator_error(O, schedule_on_singular_values(M, DEFAULT))
    allowed = allowed_error(DEFAULT, torch.float32, "half", device=GPU, concentration=concentration_of(M))
    assert errors[GPU] < allowed < errors["cpu"]


def test_a_schedule_that_diverges_where_tf32_rounds_is_refused_while_tf32_is_on(matmul):
    M = torch.empty(8, 8)
    on_gpu = partial(iteration._prepared, "polar_express", 5, *M.shape, torch.float32)
    ways = ("frobenius", "standard", "full")
    assert len(on_gpu(arithmetic_of(torch.float32, GPU), *ways)) == 5
    matmul.fp32_precision = "tf32"
    with pytest.raises(ValueError, match=r"diverges on .*, where TF32 rounds.*with_safety"):
        on_gpu(arithmetic_of(torch.float32, GPU), *ways)
    # the reason: without its safety factor, rounding to TF32 puts singular values where it explodes
    with TensorCores(tf32=True):
        assert float(newton_schulz(torch.ones(32, 1200), "polar_express", steps=5).abs().max()) > 1e3


# ------------------------------------------------------------------------------------------- what symmetric ones cost


def test_the_cost_of_symmetric_products_depends_on_where_they_run():
    segments = ((taylor(2), taylor(2)), (taylor(2),))
    m, n = 3, 5
    # per segment X Xᵀ and Q X; R² for each step; P R P, and P R and Q P, in the segment of two
    symmetric, commuting = 2 * m * m * n * 2 + 2 * m**3 * 4, 2 * m**3 * 2
    rest = 2 * m * m * n * 2
    assert segment_flops(segments, m, n) == 0.75 * symmetric + commuting + rest
    assert segment_flops(segments, m, n, (1.0, 1.0)) == symmetric + commuting + rest
    assert segment_flops(segments, m, n, (0.5, 0.25)) == 0.5 * symmetric + 0.25 * commuting + rest
    assert arithmetic_of(torch.float32)[1:] == (0.75, 1.0)
    assert arithmetic_of(torch.float16, "cuda:0")[1:] == arithmetic_of(torch.float32, "meta")[1:] == (1.0, 1.0)


# ------------------------------------------------------------------------------------------------------- long rows


def test_pieces_of_long_rows_are_added_up_in_float32():
    X = torch.full((3, 400_000), 400_000**-0.5).half()  # 49 pieces: half precision would round every sum
    exact = X.double() @ X.double().mT
    out = torch.empty(3, 3, dtype=torch.float16)
    with TensorCores() as cores:
        G = products.gram(X, scale=0.5, out=out)
    assert G is out
    assert cores.count == 49
    assert float((G.double() - 0.5 * exact).abs().max()) <= 1.5 * 2.0**-11 * 0.5 * float(exact.max())


# -------------------------------------------------------------------------------------------------- the allowed error


def emulated_error(M, F, dtype, method):
    """Error of newton_schulz where products are those of tensor cores."""
    tf32 = dtype == torch.float32
    with TensorCores(tf32=tf32) as cores:
        O = newton_schulz(M, F, compute_dtype=dtype, method=method)
    assert cores.count
    return operator_error(O, schedule_on_singular_values(M, F))


def test_half_precision_keeps_within_its_rule_on_the_zoo():
    specimens = {name: M for name, M in zoo().items() if M.numel() <= 40_000 and not name.endswith("65x33")}
    for (name, F), dtype in product(SCHEDULES.items(), (torch.float16, torch.bfloat16)):
        for animal, M in specimens.items():
            method = "gram" if M.shape[0] < M.shape[1] else "standard"
            allowed = allowed_error(F, dtype, concentration=concentration_of(M))
            assert emulated_error(M, F, dtype, method) <= allowed, (name, animal, dtype)


def test_a_third_of_the_rule_does_not_hold_for_rows_that_are_nearly_equal(matmul):
    matmul.fp32_precision = "tf32"
    for M, dtype, method in (
        (1 + 1e-4 * gaussian(64, 576), torch.float16, "gram"),
        (torch.ones(96, 400), torch.float32, "standard"),
    ):
        allowed = allowed_error(DEFAULT, dtype, device=GPU, concentration=concentration_of(M))
        assert allowed / 3 < emulated_error(M, DEFAULT, dtype, method) <= allowed


def test_the_rule_follows_the_concentration_of_a_matrix():
    dense, few = gaussian(64, 576), torch.zeros(64, 576)
    few[:4, :4] = gaussian(4, 4)
    errors, rules = [], []
    for M in (dense, few):
        errors.append(emulated_error(M, DEFAULT, torch.float16, "standard"))
        rules.append(allowed_error(DEFAULT, torch.float16, concentration=concentration_of(M)))
    assert rules[0] < rules[1] / 3


def test_concentration_is_the_longest_row_plus_the_longest_column_of_the_scaled_matrix():
    M = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert concentration_of(M) == pytest.approx(8 / 5)
    assert [concentration_of(scale * M) for scale in (1e30, 1e-30)] == pytest.approx([8 / 5, 8 / 5])
    assert concentration_of(torch.ones(16, 25)) == pytest.approx(1 / 4 + 1 / 5)
    assert concentration_of(torch.eye(1)) == MOST_CONCENTRATED
    assert concentration_of(0.1 * M, "paper") == pytest.approx(0.8)
    assert concentration_of(M, "paper") == pytest.approx(8 / 5)
    assert concentration_of(0.1 * M, "none") == pytest.approx(0.8)
    for M in (torch.zeros(2, 3), torch.empty(0, 3), torch.tensor([[1.0, torch.nan]]), torch.tensor([[torch.inf, 1]])):
        assert concentration_of(M) == MOST_CONCENTRATED
    assert concentration_of(torch.ones(16, 25), "spectral") == MOST_CONCENTRATED


def test_the_rule_of_the_default_is_not_vacuous_for_weights():
    for dtype, most in ((torch.float16, 0.08), (torch.bfloat16, 0.6)):
        assert allowed_error(DEFAULT, dtype, concentration=concentration_of(gaussian(512, 1536))) < most
        assert allowed_error(DEFAULT, dtype) == pytest.approx(4 * torch.finfo(dtype).eps / 2 * steepness(DEFAULT))


def test_sums_added_up_in_half_precision_count_twice(matmul):
    for dtype, setting in ((torch.float16, "fp16"), (torch.bfloat16, "bf16")):
        alone = allowed_error(DEFAULT, dtype, device=GPU)
        assert alone == allowed_error(DEFAULT, dtype)
        setattr(matmul, f"allow_{setting}_reduced_precision_reduction", True)
        assert allowed_error(DEFAULT, dtype, device=GPU) == 2 * alone
        assert allowed_error(DEFAULT, dtype, device="cpu") == alone


# ------------------------------------------------------------------------------------------------------- the program


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("half_precision", ROOT / "benchmarks" / "half_precision.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["half_precision"] = module
    spec.loader.exec_module(module)
    return module


def test_the_steps_of_the_benchmark_are_those_of_newton_schulz(program):
    M = gaussian(24, 40)
    for name, sizes in (("quintic", (3, 2)), ("jordan", (1, 2, 2)), ("polar_express", (1,) * 5)):
        F, steps = program.SCHEDULES[name], iter(program.SCHEDULES[name])
        segments = tuple(tuple(next(steps) for _ in range(size)) for size in sizes)
        for dtype in (torch.float32, torch.bfloat16):
            O, unit = torch.empty(24, 40, dtype=dtype), program.TensorCore(str(dtype).removeprefix("torch."))
            with TensorCores():
                iterate(M, O, Workspace(dtype, M.device), segments, "frobenius")
            distance = operator_error(program.orthogonalize(M, F, sizes, unit), O.double())
            assert distance <= allowed_error(F, dtype, concentration=concentration_of(M)) / 2


def test_mirroring_copies_the_lower_half(program):
    A, B = gaussian(6, 5), gaussian(5, 6)
    C = program.TensorCore("float32", frozenset({"R²"})).product("R²", A, B)
    assert torch.equal(C, C.mT)
    assert torch.equal(C.tril(), (A @ B).tril())
    assert torch.equal(program.TensorCore("float32").product("R²", A, B), A @ B)
    split = program.TensorCore("float16", parts=5).product("R²", A.half().float(), B.half().float())
    assert float((split - A @ B).abs().max()) > 1e-4


def test_the_committed_errors_support_what_was_decided():
    report = json.loads((ROOT / "results" / "half_precision.json").read_text(encoding="utf-8"))
    errors = {
        (row["dtype"], row["schedule"], tuple(row["segments"]), row["mirrored"]): row
        for row in report["512x1536"]["errors"]
    }
    singles = (1,) * 5
    for schedule in ("polar_express", "jordan", "quintic"):  # float16 has 3 to 10 times less error than bfloat16
        for measure in ("gaussian", "largest"):
            ratio = (
                errors["bfloat16", schedule, singles, "none"][measure]
                / errors["float16", schedule, singles, "none"][measure]
            )
            assert 5 < ratio < 10, (schedule, measure)
    for (dtype, schedule, sizes, mirrored), row in errors.items():
        planned = plan_segments(BY_NAME[schedule], 512, 1536, ROUNDS_LIKE[dtype], "gram", "half")
        if sizes in (tuple(map(len, planned)), singles):
            assert row["of_the_rule"] < 1, (dtype, schedule, sizes, mirrored)  # half of what is allowed
    # segments that the plan refuses break the rule, and there it matters which products are mirrored
    assert errors["tf32", "polar_express", (4, 1), "none"]["of_the_rule"] > 2
    assert errors["float16", "polar_express", (2, 3), "all"]["of_the_rule"] > 2
    assert (
        max(row["of_the_rule"] for shape in ("64x576", "512x1536") for row in report[shape]["sums in half precision"])
        < 4
    )
    single = {
        (row["schedule"], row["mirrored"], row["by"]): max(row["rank 2"], row["constant plus noise"])
        for row in report["float32, accuracy half"]
    }
    assert single["polar_express", "none", "blocks"] < 5e-4
    assert single["polar_express", "X Xᵀ", "blocks"] < 5e-4
    assert single["polar_express", "all", "entries"] < 5e-4  # all exact copies, or none, but not some
    for some in ("R²", "P R P", "P R", "Q P"):
        assert single["polar_express", some, "blocks"] > 10 * single["polar_express", "none", "blocks"]
    assert single["polar_express", "as on a CPU", "blocks"] > 2.0**-8  # more than "half" promises: docs/adr/0024
