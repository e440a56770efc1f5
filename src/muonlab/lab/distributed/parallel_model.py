"""A model over several ranks: whole on each (DDP), in shards (FSDP2), or in shards that have replicas (HSDP)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from muonlab.lab.distributed.ranks import Ranks
from muonlab.lab.distributed.sharded_tensors import is_sharded
from muonlab.optim.distributed.tensors import whole

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

REPLICAS = 2
"""Of the shards, in HSDP."""


class Spread:
    """A model as the ranks hold it.

    Args:
        model: on one process's device, or on the CPU; its parameters become shards where they are to.
        ranks: that it is spread over.
        device: of this rank.

    Attributes:
        model: with the names of one process; its parameters are what the optimizer is given.
        forward: what is called in training.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, device: torch.device) -> None:
        self.ranks, self.device = ranks, device
        self.model = self.forward = _sharded(model, ranks, device) if self.in_shards else model.to(device)
        if ranks.parallel == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            places = [device] if device.type == "cuda" else None
            self.forward = DistributedDataParallel(self.model, device_ids=places, process_group=ranks.group)

    @property
    def in_shards(self) -> bool:
        """Whether a rank holds a part of each parameter: all ranks must then make the same passes."""
        return self.ranks.parallel in ("fsdp", "hsdp")

    @property
    def factor(self) -> int:
        """What a loss is multiplied with: gradients are averaged over the ranks, where a sum is meant."""
        return self.ranks.size if self.ranks.parallel else 1

    @contextmanager
    def passing(self, *, last: bool) -> Iterator[None]:
        """Make one of the passes of an update; ranks exchange whole gradients in the last alone.

        Shards are reduced in every pass, since gradients that wait would be as large as the whole model.
        """
        if self.ranks.parallel == "ddp" and not last:
            with cast("DistributedDataParallel", self.forward).no_sync():
                yield
            return
        if self.ranks.parallel == "hsdp":
            cast("FSDPModule", self.model).set_requires_all_reduce(last)
        yield

    def settle(self) -> None:
        """Make what is read outside of training the same everywhere: the leader's buffers, and parameters in shards.

        Statistics of BatchNorm are those of a rank's share of a batch; the leader's are kept.
        """
        if self.ranks.parallel == "ddp":
            from torch import distributed

            for buffer in self.model.buffers():
                distributed.broadcast(buffer, 0, group=self.ranks.group)
        if self.in_shards:
            cast("FSDPModule", self.model).reshard()  # a pass without a gradient leaves the outermost parameters whole

    def weights(self) -> dict[str, Tensor]:
        """Return the whole of each tensor to the leader, gathered one by one; to the others nothing."""
        self.settle()
        found = {}
        for name, tensor in self.model.state_dict().items():
            gathered = whole(tensor)
            if self.ranks.leader:
                found[name] = gathered.cpu() if is_sharded(tensor) else gathered
        return found


def _sharded(model: nn.Module, ranks: Ranks, device: torch.device) -> nn.Module:
    """Shard a model: each repeated block by itself, so that only one is whole at a time, then the rest."""
    from torch.distributed.fsdp import fully_shard

    mesh = _mesh(device.type, ranks.size, REPLICAS if ranks.parallel == "hsdp" else 1)
    for module in reversed(list(model.modules())):  # inner ones first
        if isinstance(module, nn.ModuleList):
            for block in module:
                fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@cache
def _mesh(kind: str, size: int, replicas: int) -> DeviceMesh:
    """Return the ranks as rows of shards, a row for each replica; made once, since its groups last for the process."""
    from torch.distributed.device_mesh import init_device_mesh

    if replicas == 1:
        return init_device_mesh(kind, (size,), mesh_dim_names=("shard",))
    return init_device_mesh(kind, (replicas, size // replicas), mesh_dim_names=("replicate", "shard"))


def check(model: nn.Module, batch_size: int, device: str, ranks: Ranks) -> None:
    """Refuse what ranks cannot train together, before any cell is run.

    Args:
        model: of a cell, of which only the modules are looked at.
        batch_size: of the cell.
        device: as the cell's spec names it.
        ranks: that are to train it.
    """
    if batch_size < ranks.size:
        raise ValueError(
            f"batch_size must be at least the {ranks.size} ranks, which each take a share, got {batch_size}: start "
            f"fewer, or raise it"
        )
    if ranks.size > 1 and ":" in device:
        raise ValueError(f"--device must leave the number to torchrun, got {device!r}: use --device cuda")
    if ranks.parallel in ("fsdp", "hsdp") and any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise ValueError(
            f"--parallel {ranks.parallel} shards models without BatchNorm, got {type(model).__name__}, which has it: "
            f"use --parallel ddp"
        )
    if ranks.parallel == "hsdp" and (ranks.size < 2 * REPLICAS or ranks.size % REPLICAS):
        raise ValueError(
            f"--parallel hsdp needs an even number of ranks from 4 on, two replicas of several shards, got "
            f"{ranks.size}: start as many, or use --parallel fsdp"
        )
