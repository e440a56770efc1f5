"""Scale rules: the factor on the update of a matrix by its shape; and weights rescaled to a fixed norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

Scale = Literal["none", "original", "match_rms_adamw", "spectral"]

SCALES: Mapping[Scale, Callable[[int, int], float]] = MappingProxyType(
    {
        "none": lambda rows, columns: 1.0,  # noqa: ARG005
        "original": lambda rows, columns: math.sqrt(max(1.0, rows / columns)),
        "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
        "spectral": lambda rows, columns: math.sqrt(rows / columns),
    }
)
"""Factor on the update by the rows (outputs) and columns (inputs) of the matrix; weight decay is not scaled.

``none``: as in the paper. ``original``: K. Jordan. ``match_rms_adamw``: Moonlight; the entries of an update are as
large as AdamW's. ``spectral``: an update has a fixed operator norm from inputs to outputs in their root-mean-square
norms.
"""

Renormalize = Literal["before", "after"] | None
RENORMALIZE: tuple[Renormalize, ...] = (None, "before", "after")


def norm_of_matrices(weight: Tensor, batch: bool) -> Tensor:
    """Return the Frobenius norm of a weight, or of each of its matrices, in float32 or wider and broadcastable to it.

    Row by row: one float32 sum over all entries loses digits, and the rows may be held by several ranks.
    """
    if not batch:
        return norm_of_rows(row_norms(weight))
    rows: Tensor = torch.linalg.vector_norm(weight, dim=-1, keepdim=True, dtype=norm_dtype(weight))
    norm: Tensor = torch.linalg.vector_norm(rows, dim=-2, keepdim=True)
    return norm


def norm_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype in which norms of a weight are computed."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def row_norms(weight: Tensor) -> Tensor:
    """Return the norm of each row of a weight, read as first dimension × the rest."""
    rows: Tensor = torch.linalg.vector_norm(weight.flatten(1), dim=-1, dtype=norm_dtype(weight))
    return rows


def norm_of_rows(rows: Tensor) -> Tensor:
    """Return the Frobenius norm of a weight from the norms of its rows."""
    norm: Tensor = torch.linalg.vector_norm(rows)
    return norm


def renormalize(weight: Tensor, norm: Tensor, rows: int) -> None:
    """Rescale a weight of the given norm to ``√rows`` in place (the paper's experiments); zero stays zero."""
    weight.mul_(torch.where(norm > 0, math.sqrt(rows) / norm, 1.0).to(weight.dtype))
