"""Parameters that lie whole on one device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from muonlab.optim.layout.base import Batch


class Local:
    """One process holds the matrix and orthogonalizes it."""

    def held(self, tensor: Tensor) -> Tensor:
        """Return the tensor, detached."""
        return tensor.detach()

    def agree(self, flags: Sequence[bool]) -> Sequence[bool]:
        """Return the flags: there is nobody to ask."""
        return flags

    def whole_norm(self, norm: Tensor) -> Tensor:
        """Return the norm: nothing is missing from it."""
        return norm

    def orthogonalize(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Sequence[Tensor]]]:
        """Orthogonalize batch after batch: one call for a stack on a device, one for each matrix on a CPU.

        On a CPU a stack gains nothing and would have to be copied together; the bits are the same either way.
        """
        for batch in batches:
            yield batch, _results(batch)
            del batch  # before the next one is made


def _results(batch: Batch) -> Sequence[Tensor]:
    if len(batch.matrices) == 1 or batch.matrices[0].device.type == "cpu":
        return [batch.orthogonalize(M) for M in batch.matrices]
    return batch.orthogonalize(torch.stack(list(batch.matrices))).unbind()
