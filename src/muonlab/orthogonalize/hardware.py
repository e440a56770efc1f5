"""Which dtypes this machine multiplies in hardware, and its measured throughput.

Measurements are for people and the cost model. No computation chooses its algorithm by a measurement: ranks and resumed
runs would diverge.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import muonlab
from muonlab import _checks
from muonlab.theory import flops


def multiplies_in_hardware(dtype: torch.dtype, device: torch.device | str = "cpu") -> bool:
    """Return whether matrix products of ``dtype`` run in hardware rather than by emulation.

    Half precision on a CUDA device means tensor cores: from compute capability 7.0 for float16, 8.0 for bfloat16.
    """
    device = torch.device(device)
    if dtype in (torch.float32, torch.float64):
        return not (device.type == "mps" and dtype == torch.float64)
    if dtype not in (torch.float16, torch.bfloat16):
        return False
    if device.type == "cuda":
        least = 8 if dtype == torch.bfloat16 else 7
        return torch.cuda.get_device_capability(device)[0] >= least
    return device.type == "mps" or (device.type == "cpu" and _has_half_dot_products(dtype))


def _has_half_dot_products(dtype: torch.dtype) -> bool:
    """Return whether the CPU has instructions for this dtype; conversion to float32 does not count."""
    wanted = ("amx_bf16", "avx512_bf16") if dtype == torch.bfloat16 else ("amx_fp16", "avx512_fp16")
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(bool(capabilities.get(name, False)) for name in wanted)


@dataclass(frozen=True)
class Throughput:
    """A measured rate in floating-point operations per second.

    Args:
        what: ``"gemm"`` or ``"svd"``.
        shape: shape of the matrix.
        dtype: dtype of the matrix.
        seconds: wall-clock time, median over repetitions.
        flops_per_second: operations over wall-clock time; the count is Φ_gemm or Φ_svd of Lemma 11.
        cpu_seconds: processor time of all threads of this process, median over the same repetitions.
    """

    what: str
    shape: tuple[int, int]
    dtype: str
    seconds: float
    flops_per_second: float
    cpu_seconds: float


@lru_cache(maxsize=1)
def processor() -> str:
    """Return the name of the processor, or "" where the system does not report it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def wait(device: torch.device) -> None:
    """Block until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _median_seconds(run: Callable[[], object], repeats: int, device: torch.device) -> tuple[float, float]:
    """Return the median wall and processor seconds of a function."""
    run()
    wall, cpu = [], []
    for _ in range(repeats):
        wait(device)
        start, cpu_start = time.perf_counter(), time.process_time()
        run()
        wait(device)
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
    return statistics.median(wall), statistics.median(cpu)


def gemm_throughput(size: int = 1024, *, device: torch.device | str = "cpu", repeats: int = 7) -> Throughput:
    """Measure square float32 products, ``2·size³`` operations each (Φ_gemm of Kim & Oh 2026, Lemma 11)."""
    size, repeats = _checks.integer("size", size, at_least=1), _checks.integer("repeats", repeats, at_least=1)
    device = torch.device(device)
    A = torch.ones(size, size, device=device)
    out = torch.empty_like(A)
    seconds, cpu = _median_seconds(lambda: torch.mm(A, A, out=out), repeats, device)
    return Throughput("gemm", (size, size), "float32", seconds, 2 * size**3 / seconds, cpu)


def svd_throughput(m: int = 256, n: int = 1024, *, device: torch.device | str = "cpu", repeats: int = 3) -> Throughput:
    """Measure thin float32 SVDs by the paper's count ``4m²n + 8m³`` (Φ_svd of Kim & Oh 2026, Lemma 11)."""
    m, n = _checks.integer("m", m, at_least=1), _checks.integer("n", n, at_least=1)
    repeats = _checks.integer("repeats", repeats, at_least=1)
    device = torch.device(device)
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(m, n, generator=generator).to(device)
    seconds, cpu = _median_seconds(lambda: torch.linalg.svd(A, full_matrices=False), repeats, device)
    return Throughput("svd", (m, n), "float32", seconds, flops(m, n, "svd") / seconds, cpu)


def diagnose() -> dict[str, Any]:
    """Return versions, cores, dtypes and throughputs of this machine, including those of Lemma 11."""
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices.append("cuda")
    if torch.backends.mps.is_available():
        devices.append("mps")
    gemm, svd = gemm_throughput(), svd_throughput()
    names = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return {
        "versions": {
            "muonlab": muonlab.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "cpu": {"cores": os.cpu_count(), "torch_threads": torch.get_num_threads(), "machine": platform.machine()},
        "hardware_products": {
            device: {name: multiplies_in_hardware(dtype, device) for name, dtype in names.items()} for device in devices
        },
        "throughput": [asdict(gemm), asdict(svd)],
        "gemm_over_svd": gemm.flops_per_second / svd.flops_per_second,
    }
