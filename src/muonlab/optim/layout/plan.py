"""Who orthogonalizes what: longest processing time first on the cost model, the same on every rank."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from functools import lru_cache

import torch

from muonlab.optim.layout.base import Job
from muonlab.optim.orthogonalizer import NewtonSchulz, Plain, from_plain
from muonlab.orthogonalize.segments import plan_segments, segment_flops
from muonlab.theory.cost import flops


@lru_cache(maxsize=4096)
def cost(how: Plain, matrices: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> float:
    """Return the operations that orthogonalizing a matrix (m, n), or a stack of them, takes by the cost model.

    Example:
        >>> how = NewtonSchulz("jordan", steps=5, method="standard").plain()
        >>> cost(how, (8, 8), torch.float32, torch.device("cpu"))
        12864.0
    """
    *stack, rows, columns = matrices
    m, n = sorted((rows, columns))
    orthogonalizer = from_plain(how)
    if isinstance(orthogonalizer, NewtonSchulz):
        dtype = orthogonalizer.dtype_for(torch.empty(0, dtype=dtype, device=device))
        segments = plan_segments(orthogonalizer.schedule, m, n, dtype, orthogonalizer.method, orthogonalizer.accuracy)
        each = segment_flops(segments, m, n)
    else:
        each = float(flops(m, n, "svd_full"))
    # reading and writing count too: with no steps there is nothing else to share out
    return (each + m * n) * (stack[0] if stack else 1)


def assign(costs: Sequence[float], ranks: int) -> tuple[int, ...]:
    """Return an owner for each cost: the largest goes first, each to the rank with the least so far.

    No rank then has more than 4/3 of the best possible (Graham 1969); equal ones go round.

    Example:
        >>> assign([5.0, 3.0, 3.0, 2.0, 2.0], 2)
        (0, 1, 1, 0, 1)
    """
    loads = [(0.0, rank) for rank in range(ranks)]
    owners = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, rank = loads[0]
        owners[i] = rank
        heapq.heapreplace(loads, (load + costs[i], rank))
    return tuple(owners)


def balance(costs: Sequence[float], owners: Sequence[int], ranks: int) -> float:
    """Return the largest load over the mean load; 1 is perfect.

    Example:
        >>> balance([5.0, 3.0, 3.0, 2.0, 2.0], (0, 1, 1, 0, 0), 2)
        1.2
    """
    loads = [0.0] * ranks
    for each, owner in zip(costs, owners, strict=True):
        loads[owner] += each
    return max(loads) * ranks / sum(loads) if sum(loads) else 1.0


class Agenda:
    """What ranks must agree on: blocks in order, how each is treated, its owner, and the options of a step.

    Args:
        about: what else decides what ranks send each other.
    """

    def __init__(self, about: str = "") -> None:
        self.count = 0
        self._about = about
        self._jobs = self.hash = b""

    def update(self, jobs: Sequence[Job] | None, owners: Sequence[int], options: str) -> None:
        """Take up what a step is going to do; no jobs are those of the step before."""
        if jobs is not None:
            self.count = len(jobs)
            lines = (
                f"{job.block} {job.param.dtype} {job.says} {owner}" for job, owner in zip(jobs, owners, strict=True)
            )
            self._jobs = hashlib.sha256("\n".join((self._about, *lines)).encode()).digest()
        self.hash = hashlib.sha256(self._jobs + options.encode()).digest()
