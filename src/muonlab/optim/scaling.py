"""Scale rules: the factor on the update of a matrix by its shape; and weights rescaled to a fixed norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from muonlab.optim.views import MatrixBlock

Scale = Literal["none", "original", "match_rms_adamw", "spectral"]

SCALES: Mapping[Scale, Callable[[int, int], float]] = MappingProxyType(
    {
        "none": lambda outputs, inputs: 1.0,  # noqa: ARG005
        "original": lambda outputs, inputs: math.sqrt(max(1.0, outputs / inputs)),
        "match_rms_adamw": lambda outputs, inputs: 0.2 * math.sqrt(max(outputs, inputs)),
        "spectral": lambda outputs, inputs: math.sqrt(outputs / inputs),
    }
)
"""Factor on the update by the outputs and inputs of the matrix; weight decay is not scaled.

``none``: as in the paper. ``original``: K. Jordan. ``match_rms_adamw``: Moonlight; the entries of an update are as
large as AdamW's. ``spectral``: an update has a fixed operator norm from inputs to outputs in their root-mean-square
norms; torch.optim.Muon calls it ``spectral_unclamped``.
"""

Renormalize = Literal["before", "after"] | None
RENORMALIZE: tuple[Renormalize, ...] = (None, "before", "after")


def norm_of_matrices(weight: Tensor, block: MatrixBlock) -> Tensor:
    """Return the Frobenius norm of a block, or of each of its matrices, in float32 or wider and broadcastable to it.

    Row by row: one float32 sum over all entries loses digits, and the rows may be held by several ranks.
    """
    if not block.batch:
        return norm_of_rows(row_norms(weight, block))
    rows: Tensor = torch.linalg.vector_norm(block.read(weight), dim=-1, dtype=norm_dtype(weight))
    norm: Tensor = torch.linalg.vector_norm(rows, dim=-1)
    lead = weight.shape[: weight.ndim - block.matrix_dims]
    return norm.view(*lead, *[1] * block.matrix_dims)


def norm_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype in which norms of a weight are computed."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def row_norms(weight: Tensor, block: MatrixBlock) -> Tensor:
    """Return the norm of each row of a matrix, or of the part of its rows that a shard holds."""
    rows: Tensor = torch.linalg.vector_norm(
        weight.reshape(-1, block.matrices[-1]).contiguous(), dim=-1, dtype=norm_dtype(weight)
    )
    return rows


def norm_of_rows(rows: Tensor) -> Tensor:
    """Return the Frobenius norm of a weight from the norms of its rows."""
    norm: Tensor = torch.linalg.vector_norm(rows)
    return norm


def norm_factors(norms: Tensor, outputs: int) -> Tensor:
    """Return the factors that bring weights of these norms to the norm ``√outputs``; 1 for zero."""
    return torch.where(norms > 0, math.sqrt(outputs) / norms, 1.0)
