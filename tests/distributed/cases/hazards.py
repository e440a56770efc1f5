"""Cases that may take a process or its groups with them if they go wrong; so they come last."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import nn

from muonlab.optim import ExactPolar, Muon
from tests.distributed.cases.faults import BUILD, NAMED, attempt, inject, params_with_gradients
from tests.distributed.problems import (
    Matrix,
    Training,
    World,
    agree,
    alone,
    differing,
    distributed,
    everywhere,
    gradients,
    grouped,
    weights,
)
from tests.distributed.registry import case


@case(family="bitwise")
def a_new_process_group_after_the_first_is_gone(world: World) -> None:
    """Meshes of both groups are equal to each other, but the first one's group no longer works."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    matrices = (Matrix((6, 4), name="one"), Matrix((5, 7), name="two"))
    for _ in range(2):
        mesh = init_device_mesh("cpu", (world.size,))
        params = [nn.Parameter(distribute_tensor(W, mesh, [Shard(0)], src_data_rank=None)) for W in weights(matrices)]
        these, those = Training(matrices, params, BUILD(grouped(matrices, params))), alone(matrices, BUILD)
        these.step(3)
        those.step(3)
        agree(these, those)
        world.reconnect()


@case(2, 3, 4, family="plan")
def plan_changed_later(world: World) -> Any:
    """The plans agree at first; then one rank changes its orthogonalizer by hand."""
    matrices = everywhere(NAMED, 0)
    these, those = distributed(world, matrices, BUILD), alone(matrices, BUILD)
    these.step(2)
    those.step(2)
    kept = these.optimizer.param_groups[0]["orthogonalizer"]
    if world.rank == 1:
        these.optimizer.param_groups[0]["orthogonalizer"] = ExactPolar().plain()
    inject(these, gradients(matrices, 2))
    raised = attempt(these.optimizer.step)
    unchanged = differing(these.tensors(), those.tensors()) == []
    these.optimizer.param_groups[0]["orthogonalizer"] = kept
    these.step()
    those.step()
    agree(these, those)
    return {"raised": raised, "unchanged": unchanged}


def _one_rank_fails(world: World, empty: bool) -> Any:
    """The constructor of one rank raises; the others wait for it no longer than their group's timeout."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    params = [p for _, p in params_with_gradients(world, "plain")]
    given, lr = ([], 0.1) if empty and world.rank == 0 else (params, -1.0 if world.rank == 0 else 0.1)
    start = time.perf_counter()
    raised = attempt(lambda: Muon(given, lr=lr, process_group=group).step())
    return {"raised": raised, "seconds": time.perf_counter() - start}


case(2, 3, 4, family="lost rank", name="one_rank_has_no_parameters", empty=True)(_one_rank_fails)
case(2, 3, 4, family="lost rank", name="one_rank_fails_before_the_step", empty=False)(_one_rank_fails)


@case(2, 3, 4, family="plan")
def plan_with_layouts_in_another_order(world: World) -> Any:
    """One rank has its replicated parameter before its sharded one."""
    plain, sharded = params_with_gradients(world, "plain")[0], params_with_gradients(world, 0)[1]
    groups = [plain, sharded] if world.rank != 1 else [sharded, plain]
    raised = attempt(lambda: Muon([{"params": groups}], process_group=dist.group.WORLD).step())
    return {"raised": raised, "unchanged": True}
