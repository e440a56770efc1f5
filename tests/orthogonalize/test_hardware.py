from __future__ import annotations

import json

import pytest
import torch

from muonlab.orthogonalize import hardware
from muonlab.orthogonalize.matrices import HALF


def test_single_and_double_precision_multiply_everywhere():
    assert hardware.multiplies_in_hardware(torch.float32)
    assert hardware.multiplies_in_hardware(torch.float64)
    assert not hardware.multiplies_in_hardware(torch.int8)


def test_half_precision_on_a_cpu_counts_only_with_instructions_for_it(monkeypatch):
    for dtype, flags in ((torch.bfloat16, {"avx512_bf16": True}), (torch.float16, {"avx512_fp16": True})):
        monkeypatch.setattr(torch.cpu, "get_capabilities", flags.copy, raising=False)
        assert hardware.multiplies_in_hardware(dtype)
        monkeypatch.setattr(torch.cpu, "get_capabilities", {"avx2": True}.copy, raising=False)
        assert not hardware.multiplies_in_hardware(dtype)


def test_half_precision_on_a_cuda_device_means_tensor_cores(monkeypatch):
    for capability, halves in (((6, 1), []), ((7, 0), [torch.float16]), ((7, 5), [torch.float16]), ((8, 0), [*HALF])):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, at=capability: at)  # noqa: ARG005
        assert [dtype for dtype in HALF if hardware.multiplies_in_hardware(dtype, "cuda:0")] == halves
        assert hardware.multiplies_in_hardware(torch.float32, "cuda:0")


def test_throughput_is_operations_over_seconds():
    gemm = hardware.gemm_throughput(64, repeats=3)
    assert gemm.flops_per_second == pytest.approx(2 * 64**3 / gemm.seconds, rel=1e-12)
    svd = hardware.svd_throughput(16, 32, repeats=3)
    assert svd.flops_per_second == pytest.approx((4 * 16**2 * 32 + 8 * 16**3) / svd.seconds, rel=1e-12)
    assert gemm.seconds > 0
    assert svd.seconds > 0


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"size must be at least 1, got 0"):
        hardware.gemm_throughput(0)
    with pytest.raises(ValueError, match=r"repeats must be at least 1, got 0"):
        hardware.svd_throughput(repeats=0)


def test_diagnosis_is_plain_data():
    report = hardware.diagnose()
    assert json.loads(json.dumps(report, allow_nan=False)) == json.loads(json.dumps(report))
    assert report["versions"]["torch"] == torch.__version__
    assert report["hardware_products"]["cpu"]["float32"] is True
    assert report["gemm_over_svd"] > 0
