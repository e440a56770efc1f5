"""Corners that are easy to get wrong: odd views, scalars, states that move between layouts, copies of an optimizer."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, distribute_tensor

from muonlab.optim import SGDM, Muon
from tests.distributed.cases.faults import BUILD, NAMED, attempt
from tests.distributed.problems import Matrix, World, agree, alone, compare, differing, distributed, everywhere
from tests.distributed.registry import case


@case(2, family="bitwise")
def a_batch_of_one_matrix_that_is_cut_by_rows(world: World) -> None:
    """It has no batch dimension to be cut along, so it travels."""
    compare(world, (Matrix((8, 6), "batch", name="one"),), Muon, steps=3, apart=False)


@case(2, family="bitwise")
def stacks_of_stacks_with_weights_at_a_fixed_norm(world: World) -> None:
    """Norms of a stack that is cut along its second dimension are those of the pieces here."""
    shapes = tuple(Matrix((2, 5, 4, 3), "batch", where, name=f"cut at {where}") for where in range(4))
    compare(world, shapes, partial(Muon, renormalize="before"), steps=3, apart=False)


@case(2, family="bitwise")
def scalars_and_vectors_under_sgdm(world: World) -> None:
    """What is moved entry by entry may have any shape, in copies of either kind."""
    for place in (lambda x: x, lambda x: distribute_tensor(x, world.mesh(), [Replicate()], src_data_rank=None)):
        ours = [nn.Parameter(place(torch.ones(shape))) for shape in ((), (3,), (2, 2))]
        one = [nn.Parameter(torch.ones(shape)) for shape in ((), (3,), (2, 2))]
        sides = SGDM(ours, 0.1, 0.9, process_group=dist.group.WORLD), SGDM(one, 0.1, 0.9)
        for _ in range(3):
            for p, q in zip(ours, one, strict=True):
                p.grad, q.grad = place(torch.full(p.shape, 0.3)), torch.full(q.shape, 0.3)
            for optimizer in sides:
                optimizer.step()
        local = [getattr(p, "to_local", lambda p=p: p)() for p in ours]
        assert all(map(torch.equal, local, one))


@case(2, family="bitwise")
def a_state_loads_from_any_layout_into_any_other(world: World) -> None:
    """A momentum is put where its parameter lies."""
    places = ("plain", "replicate", 0, 1)
    for before in places:
        for after in places:
            first, second = (distributed(world, everywhere(NAMED, where), BUILD) for where in (before, after))
            first.step(2)
            second.step(2)
            second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
            one = alone(everywhere(NAMED, after), BUILD)
            one.step(2)
            second.step(2)
            one.step(2)
            agree(second, one)


@case(2, family="bitwise")
def a_copy_of_an_optimizer_works_for_itself(world: World) -> None:
    """It has no process group, and what it does not know of parameters it reads off them."""
    matrices = everywhere(NAMED, "plain")
    these, those = distributed(world, matrices, BUILD), alone(matrices, BUILD)
    these.step(2)
    those.step(2)
    again = copy.deepcopy(these.optimizer)
    for p, q in zip(again.param_groups[0]["params"], those.params, strict=True):
        p.grad = torch.ones_like(p)
        q.grad = torch.ones_like(q)
    again.step()
    those.optimizer.step()
    assert again.orthogonalized == len(matrices)
    assert all(map(torch.equal, again.param_groups[0]["params"], those.params))


@case(2, family="bitwise")
def work_is_shared_where_there_are_no_steps(world: World) -> None:
    """Normalising alone costs something, too."""
    params = [nn.Parameter(torch.ones(4, 5)) for _ in range(6)]
    for p in params:
        p.grad = torch.ones(4, 5)
    muon = Muon.paper(params, 0.1, momentum=0.9, q=0, process_group=dist.group.WORLD)
    muon.step()
    assert muon.orthogonalized == 6 // world.size


def _options(world: World, change: dict[str, Any], group: dict[str, Any]) -> Any:
    """Rank 1 has another option of the optimizer, or of its first group."""
    matrices = everywhere(NAMED, 0)
    training = distributed(world, matrices, partial(Muon, **(change if world.rank == 1 else {})))
    if world.rank == 1:
        training.optimizer.param_groups[0].update(group)
    before = training.tensors()
    raised = attempt(training.step)
    return {"raised": raised, "unchanged": differing(before, training.tensors()) == []}


for name, change, group in (
    ("comm_dtype", {"comm_dtype": torch.bfloat16}, {}),
    ("learning_rate", {}, {"lr": 0.0}),
    ("momentum", {}, {"momentum": 0.5}),
    ("name", {}, {"param_names": ["layer1", "layer0", "layer2", "layer3"]}),
):
    case(2, family="plan", name=f"plan_with_another_{name}", change=change, group=group)(_options)


@case(2, family="refused options")
def a_wire_that_loses_small_momenta_is_refused(world: World) -> Any:
    """float16 has no room for momenta of 1e-9 or 1e6."""
    return attempt(lambda: distributed(world, everywhere(NAMED, 0), partial(Muon, comm_dtype=torch.float16)))
