"""The interface between the step and where parameters live."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Matrices of one shape, dtype and device that are orthogonalized together.

    Args:
        orthogonalize: maps a matrix, or a stack of them, to new memory.
        shape: of each when whole, (m, n) or (b, m, n).
        matrices: the part of each that this process holds; momenta may be among them, so they are read only.
        owners: whatever the step wants back with the result; a layout passes it on.
    """

    orthogonalize: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    matrices: Sequence[Tensor]
    owners: Any


class Layout(Protocol):
    """What the step asks of the place where its parameters live.

    Momentum, decay and update act entry by entry on what a process holds. All that needs more than those entries is
    here: which gradients exist anywhere and are finite everywhere, norms of whole matrices, and the orthogonalization.
    """

    def held(self, tensor: Tensor) -> Tensor:
        """Return the entries that this process holds, as a plain tensor that shares their memory."""
        ...

    def agree(self, flags: Sequence[bool]) -> Sequence[bool]:
        """Return, for each parameter, whether the flag is set on any process."""
        ...

    def everywhere(self, flag: Tensor) -> Tensor:
        """Return, on its device, whether a flag is set on every process that holds a part of the parameter."""
        ...

    def whole_norm(self, norm: Tensor) -> Tensor:
        """Return the norms of whole matrices from the norms of what this process holds of them."""
        ...

    def orthogonalize(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Sequence[Tensor]]]:
        """Yield each batch with the parts of its results that this process holds, in new memory.

        Batches are made as they are asked for, so that one process needs the memory of one; asking ahead is how a
        layout overlaps communication with work.
        """
        ...
