"""How a parameter is seen as matrices: flattened, as a batch, or as blocks of rows.

A parameter falls into blocks along its first dimension (one, unless block sizes are given), each of them a view of the
parameter; a block is read as one matrix, or as a batch of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from muonlab import _checks

MatrixView = Literal["flatten", "batch"] | tuple[int, ...]
"""First dimension × the rest, matrices in the last two dimensions, or sizes of row blocks that are matrices."""

VIEWS = ("flatten", "batch")


def check_view(view: object) -> MatrixView:
    """Return a view in its plain form."""
    if isinstance(view, str):
        return "batch" if _checks.one_of("matrix_view", view, VIEWS) == "batch" else "flatten"
    if isinstance(view, Sequence):
        return tuple(_checks.integer("matrix_view size", size, at_least=1) for size in view)
    raise TypeError(
        f"matrix_view must be 'flatten', 'batch' or a tuple of row counts, got {view!r}: "
        f"for example (768, 768, 768) for a fused query, key and value"
    )


def check_fits(view: MatrixView, shape: Sequence[int], name: str) -> None:
    """Refuse a parameter that the view does not make matrices of."""
    if len(shape) < 2:
        raise ValueError(
            f"Muon takes parameters of two or more dimensions, got {name} of shape {tuple(shape)}: "
            f"split_params(model) sends such parameters to an auxiliary optimizer"
        )
    if isinstance(view, tuple) and sum(view) != shape[0]:
        raise ValueError(
            f"the sizes of a matrix_view must add up to the first dimension, got {view}, sum {sum(view)}, for {name} "
            f"of shape {tuple(shape)}: give sizes that add up to {shape[0]}"
        )


def blocks(tensor: Tensor, view: MatrixView) -> Sequence[Tensor]:
    """Return the blocks of a tensor, as views of it."""
    return torch.split(tensor, list(view)) if isinstance(view, tuple) else (tensor,)


def block_shapes(shape: Sequence[int], view: MatrixView) -> list[tuple[int, ...]]:
    """Return the shape of each block of a parameter."""
    return [(size, *shape[1:]) for size in view] if isinstance(view, tuple) else [tuple(shape)]


def matrices_shape(shape: Sequence[int], view: MatrixView) -> tuple[int, ...]:
    """Return the shape in which a block is read: a matrix (m, n), or a batch (b, m, n)."""
    if view == "batch":
        return (math.prod(shape[:-2]), *shape[-2:])
    return (shape[0], math.prod(shape[1:]))


def as_matrices(block: Tensor, view: MatrixView) -> Tensor:
    """Return a block as a matrix or as a batch; a copy where strides ask for one."""
    return block.reshape(matrices_shape(block.shape, view))
