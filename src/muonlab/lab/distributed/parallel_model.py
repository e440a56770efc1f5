"""A model over several ranks: replicated (DDP), sharded (FSDP2), or sharded with replicas (HSDP)."""

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
"""Number of replicas in HSDP."""


class DistributedModel:
    """A model with the wrapper that ``ranks.parallel`` asks for; for a single process, the model on its device.

    Args:
        model: the whole model; with FSDP and HSDP its parameters are replaced by shards.
        ranks: the ranks that train it.
        device: of this rank.

    Attributes:
        model: the module with the parameter names of a single process; the optimizer gets its parameters.
        forward: the module to call in training.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, device: torch.device) -> None:
        self.ranks, self.device = ranks, device
        self.model = self.forward = _shard(model, ranks, device) if self.is_sharded else model.to(device)
        if ranks.parallel == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            device_ids = [device] if device.type == "cuda" else None
            self.forward = DistributedDataParallel(self.model, device_ids=device_ids, process_group=ranks.group)

    @property
    def is_sharded(self) -> bool:
        """Whether each rank holds a shard of each parameter; all ranks must then make the same number of passes."""
        return self.ranks.parallel in ("fsdp", "hsdp")

    @property
    def loss_factor(self) -> int:
        """Factor on the loss before ``backward``: the wrappers average gradients over ranks, and we need their sum."""
        return self.ranks.size if self.ranks.parallel else 1

    @contextmanager
    def gradient_sync(self, *, last: bool) -> Iterator[None]:
        """Run one of several forward and backward passes of an update; replicas exchange gradients in the last only.

        Shards are reduced in every pass: unreduced gradients would need the memory of the whole model.
        """
        if self.ranks.parallel == "ddp" and not last:
            with cast("DistributedDataParallel", self.forward).no_sync():
                yield
            return
        if self.ranks.parallel == "hsdp":
            cast("FSDPModule", self.model).set_requires_all_reduce(last)
        yield

    def synchronize(self) -> None:
        """Prepare the model for use outside of training: copy the buffers of rank 0 to all, and free whole parameters.

        BatchNorm statistics are of a rank's part of each batch; those of rank 0 are used.
        """
        if self.ranks.parallel == "ddp":
            from torch import distributed

            for buffer in self.model.buffers():
                distributed.broadcast(buffer, 0, group=self.ranks.group)
        if self.is_sharded:
            cast("FSDPModule", self.model).reshard()  # a pass without gradients leaves the root's parameters unsharded

    def gather_weights(self) -> dict[str, Tensor]:
        """Return the whole state dict on rank 0, gathered tensor by tensor; an empty one on the other ranks."""
        self.synchronize()
        weights = {}
        for name, tensor in self.model.state_dict().items():
            gathered = whole(tensor)
            if self.ranks.rank == 0:
                weights[name] = gathered.cpu() if is_sharded(tensor) else gathered
        return weights


def _shard(model: nn.Module, ranks: Ranks, device: torch.device) -> nn.Module:
    """Shard each repeated block separately, so that only one is gathered at a time, then the rest of the model."""
    from torch.distributed.fsdp import fully_shard

    mesh = _mesh(device.type, ranks.size, REPLICAS if ranks.parallel == "hsdp" else 1)
    for module in reversed(list(model.modules())):  # inner modules first
        if isinstance(module, nn.ModuleList):
            for block in module:
                fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@cache
def _mesh(device_type: str, size: int, replicas: int) -> DeviceMesh:
    """Return the device mesh, one row per replica; cached, since its process groups last as long as the process."""
    from torch.distributed.device_mesh import init_device_mesh

    if replicas == 1:
        return init_device_mesh(device_type, (size,), mesh_dim_names=("shard",))
    return init_device_mesh(device_type, (replicas, size // replicas), mesh_dim_names=("replicate", "shard"))


def check_parallel(model: nn.Module, batch_size: int, device: str, ranks: Ranks) -> None:
    """Raise ``ValueError`` if the ranks cannot train a cell together.

    Args:
        model: of the cell; only its modules are inspected.
        batch_size: of the cell.
        device: as the cell's spec names it.
        ranks: the ranks that are to train it.
    """
    if batch_size < ranks.size:
        raise ValueError(
            f"batch_size must be at least the number of ranks, {ranks.size}, got {batch_size}: start fewer ranks, or "
            f"raise it"
        )
    if ranks.size > 1 and ":" in device:
        raise ValueError(f"--device must leave the number to torchrun, got {device!r}: use --device cuda")
    if ranks.parallel in ("fsdp", "hsdp") and any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise ValueError(
            f"--parallel {ranks.parallel} needs a model without BatchNorm, got {type(model).__name__}, which has it: "
            f"use --parallel ddp"
        )
    if ranks.parallel == "hsdp" and (ranks.size < 2 * REPLICAS or ranks.size % REPLICAS):
        raise ValueError(
            f"--parallel hsdp needs an even number of ranks, at least 4 (two replicas of several shards), got "
            f"{ranks.size}: start as many, or use --parallel fsdp"
        )
