"""Placements that no owner could put together: refused by name, or gathered whole on request."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from muonlab.optim import Muon
from tests.distributed.cases.faults import BUILD, attempt, inject
from tests.distributed.problems import (
    Matrix,
    Training,
    World,
    agree,
    alone,
    gradients,
    grouped,
    placed,
    weights,
)
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


def _gathered(world: World, kind: str) -> None:
    matrices = (Matrix((12, 8), name="odd"), Matrix((6, 5), name="usual"))
    those = alone(matrices, BUILD)
    W = weights(matrices)
    odd = _odd_param(world, kind, W[0])
    params = [odd if isinstance(odd, nn.Parameter) else nn.Parameter(odd), nn.Parameter(W[1])]
    if kind == "two_dims":
        params[1] = nn.Parameter(placed(world, W[1], 0))
    these = Training(matrices, params, BUILD(grouped(matrices, params), full_tensor=True))
    these.step(20)
    those.step(20)
    agree(these, those)


@case(4, family="bitwise")
def full_tensor_absent_on_one(world: World) -> None:
    """The last rank lacks a gradient that is to be gathered: zeros on its piece, as of any shard."""
    matrices = (Matrix((12, 8), name="layer0"), Matrix((8, 6), name="layer1"))
    params = [nn.Parameter(_odd_param(world, "two_dims", W)) for W in weights(matrices)]
    these = Training(matrices, params, BUILD(grouped(matrices, params), full_tensor=True))
    those = alone(matrices, BUILD)
    for step in range(4):
        grads = gradients(matrices, step)
        inject(these, grads)
        if world.rank == 3:
            params[1].grad = None
        grads[1][4:, 3:] = 0
        inject(those, grads)
        these.optimizer.step()
        those.optimizer.step()
    agree(these, those)


for kind in ("two_dims", "one_dim_twice", "strided"):
    case(4, family="refused", name=f"refused_{kind}", kind=kind)(_refused)
    case(4, family="bitwise", name=f"full_tensor_{kind}", kind=kind)(_gathered)
case(family="refused", name="refused_partial", kind="partial")(_refused)
