"""Parameters cut in ways that no owner could put together by rows: gathered whole on every rank, on request only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from muonlab.optim.layout.agreement import agreed_flags, compare
from muonlab.optim.layout.base import Job
from muonlab.optim.layout.grid import Grid
from muonlab.optim.layout.local import Local
from muonlab.optim.layout.plan import digest


class Gathered(Local):
    """Every rank gathers gradient, momentum and weight whole, does the whole step, and keeps its pieces.

    Args:
        grid: of the ranks of the mesh.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._digest, self._count = b"", 0

    def prepare(self, jobs: Sequence[Job] | None) -> None:
        """Compare with all ranks that they would do the same."""
        if jobs is not None:
            self._digest, self._count = digest(jobs, [0] * len(jobs)), len(jobs)
        compare(self._digest, self._count, self.grid)

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

    def agree(self, flags: Sequence[bool], names: Sequence[str]) -> Sequence[bool]:
        """Return, for each parameter, whether any rank has it set."""
        return agreed_flags(flags, names, self.grid)
