"""Blocks of a parameter, and the pieces into which shards cut them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from muonlab.optim.views import MatrixView, block_shapes, matrices_shape


@dataclass(frozen=True)
class Block:
    """A block of rows of a parameter: what is orthogonalized as one matrix, or as one stack of them.

    Args:
        shape: in the dimensions of the parameter, whole.
        matrices: how it is read: a matrix (m, n), or a stack (b, m, n).
        dim: along which it is cut into the pieces that shards hold.
        sizes: of the piece of each shard along ``dim``; they add up to ``shape[dim]``.
    """

    shape: tuple[int, ...]
    matrices: tuple[int, ...]
    dim: int
    sizes: tuple[int, ...]

    @property
    def stays(self) -> bool:
        """Whether every piece is a stack of whole matrices, so that nothing has to move."""
        return len(self.sizes) > 1 and len(self.matrices) == 3 and len(self.shape) > 2 and self.dim == 0

    def piece(self, shard: int) -> tuple[int, ...]:
        """Return the shape of a shard's piece."""
        return (*self.shape[: self.dim], self.sizes[shard], *self.shape[self.dim + 1 :])

    def elements(self, shard: int) -> int:
        """Return how many elements a shard's piece has."""
        return math.prod(self.piece(shard))


def cut(shape: Sequence[int], view: MatrixView, dim: int = 0, shards: int = 1) -> list[Block]:
    """Return the blocks of a parameter that is cut into so many shards along a dimension.

    Example:
        >>> [block.sizes for block in cut((6, 4), (2, 4), shards=4)]  # rows 0-1 and 2-5 on shards of 2, 2, 2, 0
        [(2, 0, 0, 0), (0, 2, 2, 0)]
    """
    cuts = chunks(shape[dim], shards)
    found, first = [], 0
    for part in block_shapes(shape, view):
        sizes = cuts if dim else _overlaps(cuts, first, first + part[0])
        found.append(Block(part, matrices_shape(part, view), dim, sizes))
        first += part[0]
    return found


class Cuts:
    """Blocks by what they are of, each cut once: a step asks for them again and again."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], list[Block]] = {}

    def __call__(self, shape: Sequence[int], view: MatrixView, dim: int = 0, shards: int = 1) -> list[Block]:
        """Return what :func:`cut` does."""
        if torch.compiler.is_compiling():  # a compiled step is made once, and must not change what it finds
            return cut(shape, view, dim, shards)
        key = (shape, view, dim, shards)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = cut(shape, view, dim, shards)
        return found


def chunks(size: int, shards: int) -> tuple[int, ...]:
    """Return how many of ``size`` rows each shard has: as many as the others, the last ones fewer or none.

    Example:
        >>> chunks(5, 4), chunks(2, 4)
        ((2, 2, 1, 0), (1, 1, 0, 0))
    """
    each = -(-size // shards)
    return tuple(max(0, min(each, size - shard * each)) for shard in range(shards))


def _overlaps(cuts: Sequence[int], first: int, last: int) -> tuple[int, ...]:
    """Return how much of each cut lies between two places."""
    found, start = [], 0
    for size in cuts:
        found.append(max(0, min(last, start + size) - max(first, start)))
        start += size
    return tuple(found)
