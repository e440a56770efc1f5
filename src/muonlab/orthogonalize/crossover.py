"""Which products and prescales run in the kernels for GPUs, and which in cuBLAS: a table, by device, dtype and shape.

Never by a timing: ranks and resumed runs would diverge. The environment variable ``MUONLAB_KERNELS`` overrides the
table: ``auto`` (as the table says), ``always`` (whatever the kernels compute correctly) or ``never``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from muonlab import _checks

Mode = Literal["auto", "always", "never"]
MODES: tuple[Mode, ...] = ("auto", "always", "never")

CROSSOVER = ((2048, 1), (1024, 4))
"""Rows and batch from which the kernel is expected to be faster than cuBLAS in half precision on tensor cores."""

_HALF = (torch.float16, torch.bfloat16)
_DTYPES = (*_HALF, torch.float32)
_LEAST_CAPABILITY = 8
_ALIGNED = 16
"""Entries of which rows and their starts must be multiples, so that they are copied 16 bytes at a time."""

_LARGEST_STRIDE = (2**31 - 1) // 128
"""Rows and columns may be this far apart: offsets within a tile of 128 have 32 bits."""


@dataclass(frozen=True)
class Gpu:
    """What the table needs to know of a device: its compiler, ``"cuda"`` or ``"hip"``, and its compute capability."""

    backend: str
    capability: tuple[int, int]


@lru_cache(maxsize=64)
def gpu_of(device: torch.device) -> Gpu:
    """Return what a CUDA or ROCm device is."""
    return Gpu("hip" if torch.version.hip else "cuda", torch.cuda.get_device_capability(device))


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Return whether Triton is installed; torch for CUDA brings it along."""
    return find_spec("triton") is not None


def kernels_for(device: torch.device) -> tuple[Gpu | None, Mode]:
    """Return the GPU whose kernels may be used, or None, and the mode."""
    if device.type != "cuda":
        return None, "never"
    mode: Mode = os.environ.get("MUONLAB_KERNELS", "auto")  # type: ignore[assignment]  # checked in the next line
    _checks.one_of("MUONLAB_KERNELS", mode, MODES)
    if mode == "always" and not has_triton():
        raise ImportError("MUONLAB_KERNELS=always needs Triton, which is not installed: pip install 'muonlab[gpu]'")
    return (gpu_of(device) if mode != "never" and has_triton() else None), mode


def multiplies(gpu: Gpu | None, mode: Mode, A: Tensor) -> bool:
    """Return whether a symmetric ``A B`` with B of A's kind, A a matrix or a stack (b, m, k), runs in the kernel."""
    if gpu is None or mode == "never" or gpu.capability[0] < _LEAST_CAPABILITY:
        return False
    if A.dtype not in _DTYPES or A.ndim > 3 or max(A.stride()[-2:]) > _LARGEST_STRIDE:
        return False
    if mode == "always":
        return True
    batch, m = (1 if A.ndim == 2 else A.shape[0]), A.shape[-2]
    aligned = all(value == 1 or value % _ALIGNED == 0 for value in (*A.shape[-2:], *A.stride(), A.storage_offset()))
    dense = 1 in A.stride()[-2:]
    large = any(m >= rows and batch >= least for rows, least in CROSSOVER)
    return gpu.backend == "cuda" and A.dtype in _HALF and dense and aligned and large


@lru_cache(maxsize=4096)
def multiplies_alone(gpu: Gpu | None, mode: Mode, dtype: torch.dtype, m: int) -> bool:
    """Return whether an m×m product runs in the kernel also without a batch, which is what plans count with."""
    return gpu is not None and multiplies(gpu, mode, torch.empty((m, m), dtype=dtype, device="meta"))


def multiplies_here(A: Tensor) -> bool:
    """Return whether a symmetric product with A runs in the kernel on its device; quick on a CPU."""
    return A.is_cuda and multiplies(*kernels_for(A.device), A)


def scales_here(M: Tensor, dtype: torch.dtype) -> bool:
    """Return whether the prescale of ``M`` runs in the kernels on its device; quick on a CPU."""
    return M.is_cuda and scales(*kernels_for(M.device), M, dtype)


def scales(gpu: Gpu | None, mode: Mode, M: Tensor, dtype: torch.dtype) -> bool:
    """Return whether the prescale of ``M`` to a compute dtype runs in the kernels, in two launches."""
    if gpu is None or mode == "never" or gpu.capability[0] < _LEAST_CAPABILITY:
        return False
    return M.dtype in _DTYPES and dtype in _DTYPES and M.ndim <= 3
