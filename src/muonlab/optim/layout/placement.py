"""Which layout a parameter has: read off its type, its placements and the optimizer's process group."""

from __future__ import annotations

from typing import Any

import torch

from muonlab import _checks
from muonlab.optim.layout.base import Layout
from muonlab.optim.layout.local import Local

COMM_DTYPES = (None, torch.bfloat16, torch.float32, torch.float64)
"""Not float16: momenta leave its range, above and below."""


class Layouts:
    """The layouts of an optimizer's parameters, one for each group of processes.

    Args:
        process_group: of processes that have copies of every plain parameter and share the work on them; None where
            each process works for itself.
        comm_dtype: of matrices that are sent; None sends them as they are.
        full_tensor: whether parameters that are cut in other ways than along one dimension are gathered whole.
        entrywise: whether the optimizer acts entry by entry, so that it does not matter how parameters are cut.
    """

    def __init__(
        self,
        process_group: Any = None,
        comm_dtype: torch.dtype | None = None,
        full_tensor: bool = False,
        *,
        entrywise: bool = False,
    ) -> None:
        _checks.one_of("comm_dtype", comm_dtype, COMM_DTYPES)
        self.comm_dtype, self.full_tensor, self.entrywise = comm_dtype, full_tensor, entrywise
        self.plain: Layout = _LOCAL
        self._found: dict[Any, Layout] = {}
        if process_group is not None:
            from muonlab.optim.layout.distributed import Distributed
            from muonlab.optim.layout.grid import Grid

            self.plain = Distributed(Grid.replicated(process_group), comm_dtype)

    def plain_values(self) -> dict[str, Any]:
        """Return what a copy in another process is made with: all but the group, which is of this process."""
        return {"comm_dtype": self.comm_dtype, "full_tensor": self.full_tensor, "entrywise": self.entrywise}

    def of(self, param: Any, name: str) -> Layout:
        """Return the layout of a parameter."""
        if not hasattr(param, "device_mesh"):
            return self.plain
        key = (param.device_mesh, tuple(param.placements))
        if key not in self._found:
            self._found[key] = self._new(param, name)
        return self._found[key]

    def _new(self, param: Any, name: str) -> Layout:
        from muonlab.optim.layout.distributed import Distributed
        from muonlab.optim.layout.gathered import Gathered
        from muonlab.optim.layout.grid import Grid, cut_by

        mesh, placements = param.device_mesh, tuple(param.placements)
        place = cut_by(placements)
        if place is None and self.entrywise:
            place = next(i for i, p in enumerate(placements) if not p.is_replicate()), 0
        partial = any(p.is_partial() for p in placements)
        if partial or (place is None and not self.full_tensor):
            way = "reduce it first" if partial else "full_tensor=True gathers it whole on every rank"
            raise TypeError(
                f"parameters must be whole, copied, or cut along one dimension by one dimension of the mesh, got "
                f"{name} with {placements} over {mesh}: {way}"
            )
        if place is None:
            return self._found.setdefault((mesh, "whole"), Gathered(Grid.of_mesh(mesh, None)))
        sharded = place[0]
        # one plan for all that the same ranks share, whatever dimension of a tensor is cut
        return self._found.setdefault((mesh, sharded), Distributed(Grid.of_mesh(mesh, sharded), self.comm_dtype))


_LOCAL = Local()
