"""Which rank holds which shard, read from a process group or from the mesh and placements of a DTensor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard


@dataclass(frozen=True)
class RankGrid:
    """The ranks of a process group, each with the shard it holds and the replica it belongs to.

    Args:
        replica: replica of each rank, in the order of the group.
        shard: shard of each rank.
        rank: rank of this process in the group.
        group: the process group; None where exchanges are only simulated.
    """

    replica: tuple[int, ...]
    shard: tuple[int, ...]
    rank: int = 0
    group: Any = None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.shard)

    def global_rank(self, rank: int) -> int:
        """Return the global rank of a rank of the group."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    @cached_property
    def shards(self) -> int:
        """Number of pieces into which a parameter is cut."""
        return max(self.shard) + 1

    @cached_property
    def replicas(self) -> int:
        """Number of ranks that hold the same piece."""
        return max(self.replica) + 1

    @classmethod
    def simulated(cls, replicas: int, shards: int, rank: int = 0) -> RankGrid:
        """Return a grid without processes, in row-major order.

        Example:
            >>> RankGrid.simulated(2, 2).shard
            (0, 1, 0, 1)
        """
        places = [(r, s) for r in range(replicas) for s in range(shards)]
        return cls(tuple(r for r, _ in places), tuple(s for _, s in places), rank)

    @classmethod
    def replicated(cls, group: Any) -> RankGrid:
        """Return the grid of a process group in which every rank holds every parameter whole."""
        size = dist.get_world_size(group)
        if size < 1:
            raise ValueError("process_group must contain this process, got one without it: pass the group it is in")
        return cls(tuple(range(size)), (0,) * size, dist.get_rank(group), group)

    @classmethod
    def from_mesh(cls, mesh: DeviceMesh, sharded: int | None) -> RankGrid:
        """Return the grid of a mesh, one dimension of which (or None) shards parameters."""
        group = _mesh_group(mesh, dist.group.WORLD)
        places = []
        for rank in dist.get_process_group_ranks(group):
            coordinates = [int(i) for i in (mesh.mesh == rank).nonzero()[0]]
            shard = 0 if sharded is None else coordinates.pop(sharded)
            sizes = [size for i, size in enumerate(mesh.mesh.shape) if i != sharded]
            replica = 0
            for i, size in zip(coordinates, sizes, strict=True):
                replica = replica * size + i
            places.append((replica, shard))
        return cls(tuple(r for r, _ in places), tuple(s for _, s in places), dist.get_rank(group), group)


@lru_cache(maxsize=64)
def _mesh_group(mesh: DeviceMesh, world: Any) -> Any:  # noqa: ARG001 - equal meshes of another world have other groups
    """Return a group of all ranks of a mesh; a new one for a mesh of several dimensions that is not the world."""
    if mesh.ndim == 1:
        return mesh.get_group()
    ranks = [int(rank) for rank in mesh.mesh.flatten()]
    if sorted(ranks) == list(range(dist.get_world_size())):
        return dist.group.WORLD
    return dist.new_group(sorted(ranks), use_local_synchronization=True)


def sharded_dims(param: Any, name: str, *, entrywise: bool = False) -> tuple[int | None, int]:
    """Return which dimension of the mesh shards which dimension of a DTensor; (None, 0) if it is only replicated.

    Args:
        param: a DTensor.
        name: its name, for the message.
        entrywise: accept every way of sharding; then the second number has no meaning.

    Raises:
        TypeError: if the tensor has partial placements, or is sharded along more than one dimension or in strides.
    """
    placements = tuple(param.placements)
    shards = [(i, p.dim) for i, p in enumerate(placements) if type(p) is Shard]
    others = [i for i, p in enumerate(placements) if type(p) is not Shard and type(p) is not Replicate]
    if not others and len(shards) <= 1:
        return shards[0] if shards else (None, 0)
    partial = any(p.is_partial() for p in placements)
    if entrywise and not partial:
        return min([i for i, _ in shards] + others), 0
    raise TypeError(
        f"parameters must be whole, replicated, or sharded along one dimension by one dimension of the mesh, got "
        f"{name} with {placements} over {param.device_mesh}: "
        + ("reduce it first" if partial else "redistribute it to such placements, or give it to an entrywise optimizer")
    )


def small_message_device(group: Any) -> torch.device:
    """Return the device of a group's small messages: the CPU where the group has gloo."""
    if "gloo" in str(dist.get_backend_config(group)) or not torch.accelerator.is_available():
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    return torch.device(accelerator.type if accelerator else "cpu", torch.accelerator.current_device_index())
