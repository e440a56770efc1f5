"""Gradient clipping by the norm of all gradients, whole or sharded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from muonlab.lab.distributed.sharded_tensors import is_sharded

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """Scale all gradients so that their total norm is at most ``max_norm``; return the total norm before.

    Squares of shards are summed in float64 on each rank, then over the mesh dimensions that shard, so that replicas are
    not counted twice.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not any(is_sharded(gradient) for gradient in gradients):
        return nn.utils.clip_grad_norm_(parameters, max_norm)
    from torch import distributed

    shards: dict[tuple[ProcessGroup, ...], list[Tensor]] = defaultdict(list)  # by the groups that hold the other shards
    for gradient in gradients:
        if is_sharded(gradient):
            shards[_groups(gradient)].append(cast("DTensor", gradient).to_local())
        else:
            shards[()].append(gradient)
    total = torch.zeros((), dtype=torch.float64, device=gradients[0].device)
    for groups, tensors in shards.items():
        squares = torch.zeros_like(total)
        for tensor in tensors:
            squares += tensor.double().square().sum()
        for group in groups:
            distributed.all_reduce(squares, group=group)
        total += squares
    norm = total.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # the formula of torch.nn.utils.clip_grad_norm_
    for tensors in shards.values():
        for tensor in tensors:
            tensor.mul_(factor.to(tensor.dtype))
    return norm


def _groups(gradient: Tensor) -> tuple[ProcessGroup, ...]:
    """Return the process groups of the mesh dimensions that shard a gradient."""
    dtensor = cast("DTensor", gradient)
    mesh = dtensor.device_mesh
    return tuple(mesh.get_group(i) for i, placement in enumerate(dtensor.placements) if placement.is_shard())
