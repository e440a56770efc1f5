"""Parameters that lie whole on one device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from muonlab.optim.layout.base import Batch

_STACKS = 4
"""Stacks that a batch is orthogonalized in on a device."""


class Local:
    """One process holds the matrix and orthogonalizes it."""

    def held(self, tensor: Tensor) -> Tensor:
        """Return the tensor, detached."""
        return tensor.detach()

    def agree(self, flags: Sequence[bool]) -> Sequence[bool]:
        """Return the flags: there is nobody to ask."""
        return flags

    def everywhere(self, flag: Tensor) -> Tensor:
        """Return the flag: it is set here or not."""
        return flag

    def whole_norm(self, norm: Tensor) -> Tensor:
        """Return the norm: nothing is missing from it."""
        return norm

    def orthogonalize(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Sequence[Tensor]]]:
        """Orthogonalize batch after batch: in a few stacks on a device, one by one on a CPU.

        On a CPU a stack gains nothing and would have to be copied together; the bits are the same either way. On a
        device the iteration needs several times the memory of its input, and a quarter of the batch at a time keeps
        all of it below four times the batch.
        """
        for batch in batches:
            yield batch, _results(batch)
            del batch  # before the next one is made


def _results(batch: Batch) -> Sequence[Tensor]:
    matrices = batch.matrices
    if matrices[0].device.type == "cpu":
        return [batch.orthogonalize(M) for M in matrices]
    size = -(-len(matrices) // _STACKS)
    stacks = [list(matrices[first : first + size]) for first in range(0, len(matrices), size)]
    return [O for stack in stacks for O in batch.orthogonalize(torch.stack(stack)).unbind()]
