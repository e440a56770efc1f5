"""Clips all gradients together, whole or in shards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from muonlab.lab.distributed.sharded_tensors import is_sharded

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor


@torch.no_grad()
def clip(parameters: Sequence[nn.Parameter], most: float) -> Tensor:
    """Scale all gradients so that their norm together is at most ``most``; return the norm that they had.

    The shards of a gradient are squared and added in float64 on the ranks that hold them, and these sums are added over
    the dimensions of the mesh that shard: a replica is not counted twice.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not any(is_sharded(gradient) for gradient in gradients):
        return nn.utils.clip_grad_norm_(parameters, most)
    from torch import distributed

    shards: dict[tuple[ProcessGroup, ...], list[Tensor]] = defaultdict(list)  # by where the rest of them is
    for gradient in gradients:
        if is_sharded(gradient):
            shards[_groups(gradient)].append(cast("DTensor", gradient).to_local())
        else:
            shards[()].append(gradient)
    total = torch.zeros((), dtype=torch.float64, device=gradients[0].device)
    for groups, tensors in shards.items():
        part = _squares(tensors, total.device)
        for group in groups:
            distributed.all_reduce(part, group=group)
        total += part
    norm = total.sqrt()
    factor = (most / (norm + 1e-6)).clamp(max=1.0)  # as torch's own
    for tensors in shards.values():
        for tensor in tensors:
            tensor.mul_(factor.to(tensor.dtype))
    return norm


def _squares(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    total = torch.zeros((), dtype=torch.float64, device=device)
    for tensor in tensors:
        total += tensor.double().square().sum()
    return total


def _groups(gradient: Tensor) -> tuple[ProcessGroup, ...]:
    """Return the groups over which a gradient's shards lie."""
    placed = cast("DTensor", gradient)
    return tuple(placed.device_mesh.get_group(i) for i, one in enumerate(placed.placements) if one.is_shard())
