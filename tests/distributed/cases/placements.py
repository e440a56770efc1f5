"""Placements that are not supported raise an error that names the parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from muonlab.optim import Muon
from tests.distributed.cases.faults import attempt
from tests.distributed.problems import Matrix, World, weights
from tests.distributed.registry import case


def _odd_param(world: World, kind: str, W: Tensor) -> DTensor:
    if kind == "partial":
        return DTensor.from_local(W.clone(), world.mesh(), [Partial()], run_check=False)
    mesh = world.mesh(2, world.size // 2)
    data, tensor = mesh.mesh_dim_names
    if kind == "strided":
        layer = nn.Sequential(nn.Linear(W.shape[1], W.shape[0], bias=False))
        with torch.no_grad():
            layer[0].weight.copy_(W)
        parallelize_module(layer, mesh[tensor], {"0": ColwiseParallel()})
        fully_shard(layer, mesh=mesh[data])
        return layer[0].weight
    placements = {"two_dims": [Shard(0), Shard(1)], "one_dim_twice": [Shard(0), Shard(0)]}[kind]
    return distribute_tensor(W.clone(), mesh, placements, src_data_rank=None)


def _refused(world: World, kind: str) -> Any:
    p = nn.Parameter(_odd_param(world, kind, weights((Matrix((12, 8)),))[0]))
    return {"placements": str(p.placements), "raised": attempt(lambda: Muon([{"params": [("odd.weight", p)]}]))}


for kind in ("two_dims", "one_dim_twice", "strided"):
    case(4, family="refused", name=f"refused_{kind}", kind=kind)(_refused)
case(family="refused", name="refused_partial", kind="partial")(_refused)
