"""Parameters that lie whole on one device, and are worked on by one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from muonlab.optim.layout.base import Batch, Done, Job
from muonlab.optim.layout.blocks import Block, Cuts
from muonlab.optim.scaling import norm_of_matrices
from muonlab.optim.views import MatrixView

if TYPE_CHECKING:
    from muonlab.optim.part import Part

_STACKS = 4
"""Stacks that a batch is orthogonalized in on a device."""
_IN_CACHE = 1 << 21
"""Bytes of weights that are worked on together on a CPU, where stacking matrices gains nothing."""


class Local:
    """One process holds the matrix and orthogonalizes it."""

    shares_memory = True

    def __init__(self) -> None:
        self._cuts = Cuts()

    def prepare(self, jobs: Sequence[Job] | None, options: str) -> None:
        """Do nothing: all work is done here."""

    def share(self, param: Tensor, block: Block, index: int) -> range:  # noqa: ARG002
        """Return all matrices of a block."""
        return range(math.prod(block.matrices[:-2]))

    def wholes(self, parts: Sequence[Part], pieces: Sequence[Tensor]) -> Mapping[int, Tensor]:  # noqa: ARG002
        """Return the pieces, which are whole."""
        return dict(enumerate(pieces))

    def copies(self, param: Tensor) -> int:  # noqa: ARG002
        """Return that there is one."""
        return 1

    def held(self, tensor: Tensor) -> Tensor:
        """Return the tensor, detached."""
        return tensor.detach()

    def settle(self, tensor: Tensor, held: Tensor) -> None:
        """Do nothing: the memory is the same."""

    def agree(self, flags: Sequence[bool], names: Sequence[str]) -> Sequence[bool]:  # noqa: ARG002
        """Return the flags: there is nobody to ask."""
        return flags

    def largest(self, values: Tensor) -> Tensor:
        """Return the values: there are no others."""
        return values

    def blocks(self, param: Tensor, view: MatrixView) -> Sequence[Block]:
        """Return the blocks of a parameter, each in one piece."""
        return self._cuts(param.shape, view)

    def pieces(self, held: Tensor, blocks: Sequence[Block]) -> Sequence[Tensor]:
        """Return the blocks of a tensor."""
        return (held,) if len(blocks) == 1 else torch.split(held, [block.shape[0] for block in blocks])

    def norms(self, parts: Sequence[Part]) -> Sequence[Tensor]:
        """Return the norms of the weights: nothing is missing from them."""
        return [norm_of_matrices(part.weight, part.group["matrix_view"] == "batch") for part in parts]

    def room(self, device: torch.device) -> int | None:
        """Return what stays in the cache of a CPU from momentum to update."""
        return _IN_CACHE if device.type == "cpu" else None

    def orthogonalize(self, batches: Iterable[Batch], done: Done) -> Iterator[tuple[Batch, Sequence[Tensor]]]:
        """Orthogonalize batch after batch."""
        for batch in batches:
            yield batch, worked_on(batch, done)
            del batch  # before the next one is made


def worked_on(batch: Batch, done: Done) -> Sequence[Tensor]:
    """Orthogonalize pieces that are whole matrices, or stacks of them."""
    *stack, m, n = batch.shape
    matrices = [piece.reshape(-1, m, n) if stack else piece.reshape(m, n) for piece in batch.pieces]
    results = orthogonalized(batch.orthogonalize, matrices)
    done(batch.parts, matrices, results)
    return results


def orthogonalized(orthogonalize: Callable[[Tensor], Tensor], matrices: Sequence[Tensor]) -> Sequence[Tensor]:
    """Orthogonalize matrices of one shape: in a few stacks on a device, one by one on a CPU.

    On a CPU a stack gains nothing and would have to be copied together; the bits are the same either way. On a device
    the iteration needs several times the memory of its input, and a quarter of the batch at a time keeps all of it
    below four times the batch.
    """
    if not matrices or matrices[0].device.type == "cpu":
        return [orthogonalize(M) for M in matrices]
    size = -(-len(matrices) // _STACKS)
    stacks = [list(matrices[first : first + size]) for first in range(0, len(matrices), size)]
    return [O for stack in stacks for O in orthogonalize(torch.stack(stack)).unbind()]
