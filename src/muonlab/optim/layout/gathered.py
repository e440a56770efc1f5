"""Parameters cut in ways that no owner could put together by rows: gathered whole on every rank, on request only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from muonlab.optim.layout.agreement import agreed_flags
from muonlab.optim.layout.base import Job
from muonlab.optim.layout.grid import Grid
from muonlab.optim.layout.local import Local
from muonlab.optim.layout.plan import Agenda


class Gathered(Local):
    """Every rank gathers gradient, momentum and weight whole, does the whole step, and keeps its pieces.

    Args:
        grid: of the ranks of the mesh.
    """

    shares_memory = False

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid = grid
        self.agenda = Agenda("gathered")

    def prepare(self, jobs: Sequence[Job] | None, options: str) -> None:
        """Take up what is to be done: all of it, by every rank."""
        self.agenda.update(jobs, [0] * len(jobs or ()), options)

    def held(self, tensor: Tensor) -> Tensor:
        """Return the whole tensor, in memory of its own."""
        whole: Tensor = cast(DTensor, tensor).full_tensor()
        return whole.detach().clone()

    def settle(self, tensor: Tensor, held: Tensor) -> None:
        """Write this rank's piece of the whole back; no rank needs another for that."""
        wanted = cast(DTensor, tensor)
        copies = [Replicate()] * wanted.device_mesh.ndim
        whole = DTensor.from_local(held, wanted.device_mesh, copies, run_check=False)
        wanted.to_local().copy_(whole.redistribute(placements=wanted.placements).to_local())

    def copies(self, param: Tensor) -> int:
        """Return how many ranks hold the same piece."""
        placed = cast(DTensor, param)
        sizes = zip(placed.placements, placed.device_mesh.mesh.shape, strict=True)
        return math.prod(size for placement, size in sizes if placement.is_replicate())

    def agree(self, flags: Sequence[bool], names: Sequence[str]) -> Sequence[bool]:
        """Return, for each parameter, whether any rank has it set."""
        return agreed_flags(flags, names, self.agenda.hash, self.agenda.count, self.grid, copies=False)
