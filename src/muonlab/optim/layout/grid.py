"""Which ranks hold which shard: what a process group, or the placements of a distributed tensor, say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard


@dataclass(frozen=True)
class Grid:
    """The ranks of a process group by the shard that each holds and the replica that it belongs to.

    Args:
        replica: of each rank of the group, in the group's own order.
        shard: of each rank of the group.
        me: the rank of this process in the group.
        group: of processes; None where exchanges are only simulated.
    """

    replica: tuple[int, ...]
    shard: tuple[int, ...]
    me: int = 0
    group: Any = None

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return len(self.shard)

    def name(self, rank: int) -> int:
        """Return the number by which the job knows a rank of the group."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    @cached_property
    def shards(self) -> int:
        """Number of pieces that a parameter is cut into."""
        return max(self.shard) + 1

    @cached_property
    def replicas(self) -> int:
        """Number of processes that hold the same piece."""
        return max(self.replica) + 1

    @classmethod
    def of(cls, replicas: int, shards: int, me: int = 0) -> Grid:
        """Return a grid without processes, row by row.

        Example:
            >>> Grid.of(2, 2).shard
            (0, 1, 0, 1)
        """
        places = [(r, s) for r in range(replicas) for s in range(shards)]
        return cls(tuple(r for r, _ in places), tuple(s for _, s in places), me)

    @classmethod
    def replicated(cls, group: Any) -> Grid:
        """Return the grid of a process group whose every rank holds everything."""
        size = dist.get_world_size(group)
        if size < 1:
            raise ValueError("process_group must contain this process, got one without it: pass the group it is in")
        return cls(tuple(range(size)), (0,) * size, dist.get_rank(group), group)

    @classmethod
    def of_mesh(cls, mesh: DeviceMesh, sharded: int | None) -> Grid:
        """Return the grid of a mesh that cuts tensors along one of its dimensions, or along none."""
        group = _group_of(mesh, dist.group.WORLD)
        places = []
        for rank in dist.get_process_group_ranks(group):
            place = [int(i) for i in (mesh.mesh == rank).nonzero()[0]]
            shard = 0 if sharded is None else place.pop(sharded)
            sizes = [size for i, size in enumerate(mesh.mesh.shape) if i != sharded]
            replica = 0
            for i, size in zip(place, sizes, strict=True):
                replica = replica * size + i
            places.append((replica, shard))
        return cls(tuple(r for r, _ in places), tuple(s for _, s in places), dist.get_rank(group), group)


@lru_cache(maxsize=64)
def _group_of(mesh: DeviceMesh, world: Any) -> Any:  # noqa: ARG001 - another world has other groups, of equal meshes
    """Return a group of all ranks of a mesh; of a mesh of several dimensions that is not the world, a new one."""
    if mesh.ndim == 1:
        return mesh.get_group()
    ranks = [int(rank) for rank in mesh.mesh.flatten()]
    if sorted(ranks) == list(range(dist.get_world_size())):
        return dist.group.WORLD
    return dist.new_group(sorted(ranks), use_local_synchronization=True)


def cut_by(placements: Sequence[Any]) -> tuple[int | None, int] | None:
    """Return which dimension of the mesh cuts which dimension of a tensor; None if that is not all there is.

    Example:
        >>> cut_by([Replicate(), Shard(0)]), cut_by([Replicate()]), cut_by([Shard(0), Shard(1)])
        ((1, 0), (None, 0), None)
    """
    shards = [(i, p.dim) for i, p in enumerate(placements) if type(p) is Shard]
    others = [p for p in placements if type(p) is not Shard and type(p) is not Replicate]
    if others or len(shards) > 1:
        return None
    return shards[0] if shards else (None, 0)


def small_device(group: Any) -> torch.device:
    """Return where a group's small messages lie: on a CPU where it speaks gloo."""
    if "gloo" in str(dist.get_backend_config(group)) or not torch.accelerator.is_available():
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    return torch.device(accelerator.type if accelerator else "cpu", torch.accelerator.current_device_index())
