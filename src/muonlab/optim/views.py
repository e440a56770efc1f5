"""How a parameter is read as matrices: flattened, as a batch, or as blocks of rows; and how shards cut the blocks.

A parameter is split along its first dimension into blocks (one block, unless block sizes are given). Each block is a
view of the parameter and is read as one matrix or as a batch of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from muonlab import _checks

MatrixView = Literal["flatten", "batch"] | tuple[int, ...]
"""First dimension × the rest, matrices in the last two dimensions, or the sizes of row blocks that are matrices."""

VIEWS = ("flatten", "batch")


def check_view(view: object) -> MatrixView:
    """Return a view in its plain form; raise if it is not one."""
    if isinstance(view, str):
        return "batch" if _checks.one_of("matrix_view", view, VIEWS) == "batch" else "flatten"
    if isinstance(view, Sequence):
        return tuple(_checks.integer("matrix_view size", size, at_least=1) for size in view)
    raise TypeError(
        f"matrix_view must be 'flatten', 'batch' or a tuple of row counts, got {view!r}: "
        f"for example (768, 768, 768) for a fused query, key and value"
    )


def check_fits(view: MatrixView, shape: Sequence[int], name: str) -> None:
    """Raise if the view does not read a parameter of this shape as matrices."""
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
    """Return a block as a matrix or as a batch; a copy where its strides require one."""
    return block.reshape(matrices_shape(block.shape, view))


@dataclass(frozen=True)
class MatrixBlock:
    """A block of rows of a parameter, orthogonalized as one matrix or as one batch, and how shards cut it.

    Args:
        shape: whole shape in the dimensions of the parameter.
        matrices: shape in which it is read: a matrix (m, n), or a batch (b, m, n).
        dim: dimension along which shards cut it.
        sizes: size of each shard's piece along ``dim``; they add up to ``shape[dim]``.
    """

    shape: tuple[int, ...]
    matrices: tuple[int, ...]
    dim: int
    sizes: tuple[int, ...]

    @property
    def stays_local(self) -> bool:
        """Whether every shard holds whole matrices of a batch, so that nothing has to be sent."""
        return len(self.sizes) > 1 and len(self.matrices) == 3 and len(self.shape) > 2 and self.dim == 0

    def piece_shape(self, shard: int) -> tuple[int, ...]:
        """Return the shape of a shard's piece."""
        return (*self.shape[: self.dim], self.sizes[shard], *self.shape[self.dim + 1 :])

    def piece_elements(self, shard: int) -> int:
        """Return the number of elements of a shard's piece."""
        return math.prod(self.piece_shape(shard))


def matrix_blocks(shape: Sequence[int], view: MatrixView, dim: int = 0, shards: int = 1) -> Sequence[MatrixBlock]:
    """Return the blocks of a parameter that is cut into shards along a dimension.

    Example:
        >>> [block.sizes for block in matrix_blocks((6, 4), (2, 4), shards=4)]  # shards hold 2, 2, 2 and 0 rows
        [(2, 0, 0, 0), (0, 2, 2, 0)]
    """
    if torch.compiler.is_compiling():  # a compiled step must not write to a cache
        return _matrix_blocks(shape, view, dim, shards)
    return _cached_matrix_blocks(shape, view, dim, shards)


def _matrix_blocks(shape: Sequence[int], view: MatrixView, dim: int, shards: int) -> Sequence[MatrixBlock]:
    shard_sizes = chunk_sizes(shape[dim], shards)
    result, first = [], 0
    for block_shape in block_shapes(shape, view):
        sizes = shard_sizes if dim else _overlaps(shard_sizes, first, first + block_shape[0])
        result.append(MatrixBlock(block_shape, matrices_shape(block_shape, view), dim, sizes))
        first += block_shape[0]
    return result


_cached_matrix_blocks = lru_cache(maxsize=4096)(_matrix_blocks)


def chunk_sizes(size: int, shards: int) -> tuple[int, ...]:
    """Return how many of ``size`` rows each shard holds, as ``torch.chunk`` cuts them; the last ones may hold none.

    Example:
        >>> chunk_sizes(5, 4), chunk_sizes(2, 4)
        ((2, 2, 1, 0), (1, 1, 0, 0))
    """
    each = -(-size // shards)
    return tuple(max(0, min(each, size - shard * each)) for shard in range(shards))


def _overlaps(shard_sizes: Sequence[int], first: int, last: int) -> tuple[int, ...]:
    """Return how many of the rows from ``first`` up to ``last`` each shard holds."""
    overlaps, start = [], 0
    for size in shard_sizes:
        overlaps.append(max(0, min(last, start + size) - max(first, start)))
        start += size
    return tuple(overlaps)
