"""How matrix products round and what symmetric ones cost, by dtype, device and torch's settings."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from muonlab.orthogonalize.crossover import kernels_for, multiplies_alone

TF32_ROUNDOFF = 2.0**-11
"""Unit roundoff of TF32, which keeps 10 bits after the leading one; tensor cores have it from capability 8.0."""


class Arithmetic(NamedTuple):
    """What the plan of an iteration needs to know about products.

    Args:
        unit_roundoff: unit roundoff of what a product reads and writes; its sums are at least float32.
        symmetric: cost of ``X Xᵀ``, ``R²`` and ``P R P`` over that of a whole product.
        commuting: the same for ``P R`` and ``Q P``, which rounding keeps from being quite symmetric.
    """

    unit_roundoff: float
    symmetric: float
    commuting: float


CPU_COSTS = (0.75, 1.0)
"""Blocks of the first three are mirrored, which saves a quarter (docs/adr/0003)."""

LIBRARY_COSTS = (1.0, 1.0)
"""cuBLAS and its like compute symmetric products whole."""

KERNEL_COSTS = (0.55, 0.55)
"""The kernel for GPUs computes the tiles on and below the diagonal; a model, not measured."""


def arithmetic_of(dtype: torch.dtype, device: torch.device | str = "cpu", m: int = 0) -> Arithmetic:
    """Return the arithmetic of products of ``dtype`` with an m×m result on a device.

    Example:
        >>> arithmetic_of(torch.float32)
        Arithmetic(unit_roundoff=5.960464477539063e-08, symmetric=0.75, commuting=1.0)
    """
    device = device if isinstance(device, torch.device) else torch.device(device)
    if device.type == "cpu":
        return _on_cpu(dtype, _has_bfloat16_tiles() and _setting("mkldnn"))
    in_kernel = device.type == "cuda" and multiplies_alone(*kernels_for(device), dtype, m)
    return Arithmetic(product_roundoff(dtype, device), *(KERNEL_COSTS if in_kernel else LIBRARY_COSTS))


@lru_cache(maxsize=64)
def _on_cpu(dtype: torch.dtype, setting: bool | str) -> Arithmetic:  # noqa: ARG001 - which the roundoff depends on
    return Arithmetic(product_roundoff(dtype), *CPU_COSTS)


def product_roundoff(dtype: torch.dtype, device: torch.device | str = "cpu") -> float:
    """Return the unit roundoff of products of ``dtype`` on a device, as torch is set now.

    That of the dtype, but for float32 with TF32 on (``torch.set_float32_matmul_precision("high")``,
    ``torch.backends.cuda.matmul.allow_tf32``), and with bfloat16 on a CPU that has tiles for it (``"medium"``).
    """
    if dtype == torch.float32:
        device = torch.device(device)
        if device.type == "cuda" and _cuda_has_tf32_on(device):
            return TF32_ROUNDOFF
        if device.type == "cpu" and _has_bfloat16_tiles() and _setting("mkldnn") == "bf16":
            return torch.finfo(torch.bfloat16).eps / 2
    return torch.finfo(dtype).eps / 2


def _cuda_has_tf32_on(device: torch.device) -> bool:
    return _setting("cuda") == "tf32" and torch.cuda.get_device_capability(device)[0] >= 8


def _setting(backend: str) -> str:
    """Return the precision of float32 products, ``"tf32"`` and ``"bf16"`` among others; torch 2.9 renamed it."""
    matmul = getattr(getattr(torch.backends, backend), "matmul", None)
    precision = getattr(matmul, "fp32_precision", None) if hasattr(torch.backends, "fp32_precision") else None
    if precision is not None:
        return str(precision)
    if backend == "cuda":
        return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    return "bf16" if torch.get_float32_matmul_precision() == "medium" else "ieee"


@lru_cache(maxsize=1)
def _has_bfloat16_tiles() -> bool:
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("amx_bf16", False))
