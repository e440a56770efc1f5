"""The interface between the step and where parameters live."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from muonlab.optim.layout.blocks import Block
from muonlab.optim.views import MatrixView

if TYPE_CHECKING:
    from muonlab.optim.part import Part

Done = Callable[[Sequence["Part"], Sequence[Tensor], Sequence[Tensor]], None]
"""Called by the process that orthogonalized, with the parts, the whole matrices, and what they became."""


class Job(NamedTuple):
    """A block that a step may orthogonalize: whose it is, how much work it is, and what ranks must agree on."""

    param: Tensor
    number: int
    block: Block
    cost: float
    says: str


@dataclass(frozen=True)
class Batch:
    """Blocks of one shape, dtype and device that are orthogonalized together.

    Args:
        orthogonalize: maps a matrix, or a stack of them, to new memory.
        shape: of each when whole, (m, n) or (b, m, n).
        pieces: what this process holds of each; momenta may be among them, so they are read only.
        parts: of the step, one for each.
    """

    orthogonalize: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    pieces: Sequence[Tensor]
    parts: Sequence[Part]


class Layout(Protocol):
    """What the step asks of the place where its parameters live.

    Momentum, decay and update act entry by entry on what a process holds. What needs more than those entries is here:
    which gradients exist anywhere, how large entries are anywhere, norms of whole matrices, the orthogonalization.
    """

    shares_memory: bool
    """Whether what the step works on is the memory of the parameters."""

    def prepare(self, jobs: Sequence[Job] | None, options: str) -> None:
        """Share out the work of a step among processes.

        Args:
            jobs: all that a step may have to do; None where nothing has changed since the last time.
            options: with which the step is taken, which must be the same on all processes.
        """
        ...

    def share(self, param: Tensor, block: Block, index: int) -> range:
        """Return which matrices of a block this process orthogonalizes, now that the work is shared out."""
        ...

    def wholes(self, parts: Sequence[Part], pieces: Sequence[Tensor]) -> Mapping[int, Tensor]:
        """Return, by number, the whole blocks that pieces make up, for what this process orthogonalizes."""
        ...

    def copies(self, param: Tensor) -> int:
        """Return how many processes hold the same piece of a parameter."""
        ...

    def held(self, tensor: Tensor) -> Tensor:
        """Return the entries that this process works on, as a plain tensor."""
        ...

    def settle(self, tensor: Tensor, held: Tensor) -> None:
        """Bring what the step made of :meth:`held` back, where that does not share memory."""
        ...

    def agree(self, flags: Sequence[bool], names: Sequence[str]) -> Sequence[bool]:
        """Return, for each parameter, whether the flag is set on any process, once all of them plan the same step."""
        ...

    def largest(self, values: Tensor) -> Tensor:
        """Return the largest of each value over all processes."""
        ...

    def blocks(self, param: Tensor, view: MatrixView) -> Sequence[Block]:
        """Return the blocks of a parameter."""
        ...

    def pieces(self, held: Tensor, blocks: Sequence[Block]) -> Sequence[Tensor]:
        """Return what this process holds of each block, as views of what it holds of the parameter."""
        ...

    def norms(self, parts: Sequence[Part]) -> Sequence[Tensor]:
        """Return the norms of whole weights (each matrix of a stack its own), broadcastable to what is held."""
        ...

    def room(self, device: torch.device) -> int | None:
        """Return the bytes of whole matrices that make a good batch; None is as many as there are."""
        ...

    def orthogonalize(self, batches: Iterable[Batch], done: Done) -> Iterator[tuple[Batch, Sequence[Tensor]]]:
        """Yield each batch with the parts of its results that this process holds, in new memory.

        Batches are made as they are asked for, so that one process needs the memory of one; asking ahead is how a
        layout overlaps communication with work.
        """
        ...
