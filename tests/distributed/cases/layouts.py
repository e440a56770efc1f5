"""Every layout against one process: even, uneven and empty shards, filters, fused matrices, stacks."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from muonlab.optim import Muon
from tests.distributed.problems import (
    CUT,
    FUSED,
    SHAPES,
    STACKS,
    STEPS,
    Matrix,
    Training,
    World,
    agree,
    alone,
    bits,
    compare,
    everywhere,
    grouped,
    like,
    weights,
)
from tests.distributed.registry import case

KINDS = {"shapes": SHAPES, "fused": FUSED, "stacks": STACKS, "cut": CUT}


def _kind(world: World, kind: str, where: Any, shape: tuple[int, ...] = ()) -> None:
    compare(world, everywhere(KINDS[kind], where), Muon, shape)


for kind in KINDS:
    case(family="bitwise", name=f"replicated_{kind}", kind=kind, where="plain")(_kind)
    case(family="bitwise", name=f"dtensor_replicate_{kind}", kind=kind, where="replicate")(_kind)
    for dim in (0, 1) if kind == "fused" else (0, 1, 2):
        case(family="bitwise", name=f"shard{dim}_{kind}", kind=kind, where=dim)(_kind)
    for dim in (0, 1) if kind != "cut" else ():
        for replicas, shards in ((1, 2), (2, 1), (2, 2), (1, 3)):
            name = f"hsdp{replicas}x{shards}_shard{dim}_{kind}"
            case(replicas * shards, family="bitwise", name=name, kind=kind, where=dim, shape=(replicas, shards))(_kind)


@case(3, 4, family="bitwise")
def renormalized_cuts(world: World) -> None:
    for where in ("plain", 0, 1, 2):
        compare(world, everywhere(CUT, where), partial(Muon, renormalize="before"))


class Net(nn.Module):
    """Layers whose rows divide by some numbers of ranks and not by others, one that leaves ranks with nothing."""

    def __init__(self, out: tuple[int, ...] = (8, 15, 24, 5, 2)) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.conv = nn.Conv2d(3, out[0], 3, bias=False)
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in zip((12, *out[1:]), out[1:], strict=False))
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))


def _of_module(module: nn.Module, **options: Any) -> Training:
    named = [(name.removeprefix("module."), p) for name, p in module.named_parameters()]
    matrices = [Matrix(tuple(p.shape), name=name) for name, p in named]
    optimizer = Muon([{"params": named}], lr=0.05, weight_decay=0.1, **options)
    return Training(matrices, [p for _, p in named], optimizer)


def _against_one_process(these: Training, net: nn.Module) -> None:
    those = _of_module(net)
    these.step(STEPS)
    those.step(STEPS)
    agree(these, those)


@case(family="bitwise")
def ddp_module(_: World) -> None:
    net = Net()
    wrapped = DistributedDataParallel(copy.deepcopy(net))
    _against_one_process(_of_module(wrapped, process_group=dist.group.WORLD), net)


@case(family="bitwise")
def fsdp_module(world: World) -> None:
    net = Net()
    sharded = copy.deepcopy(net)
    for layer in sharded.layers:
        fully_shard(layer, mesh=world.mesh())
    fully_shard(sharded, mesh=world.mesh())
    assert all(isinstance(p, DTensor) for p in sharded.parameters())
    _against_one_process(_of_module(sharded), net)


@case(family="bitwise")
def fsdp_module_with_shard1(world: World) -> None:
    net = Net((12, 24, 12, 36, 2))  # FSDP2 cuts other dimensions than the first into equal parts only
    sharded = copy.deepcopy(net)
    for layer in sharded.layers:
        fully_shard(layer, mesh=world.mesh(), shard_placement_fn=lambda _: Shard(1))
    fully_shard(sharded, mesh=world.mesh())
    assert sharded.layers[0].weight.placements == (Shard(1),)
    _against_one_process(_of_module(sharded), net)


def _hsdp_module(world: World, shape: tuple[int, int]) -> None:
    net = Net()
    sharded = copy.deepcopy(net)
    fully_shard(sharded, mesh=world.mesh(*shape))
    assert len(sharded.conv.weight.placements) == 2
    _against_one_process(_of_module(sharded), net)


for replicas, shards in ((1, 2), (2, 1), (2, 2)):
    name = f"hsdp{replicas}x{shards}_module"
    case(replicas * shards, family="bitwise", name=name, shape=(replicas, shards))(_hsdp_module)


@case(3, 4, family="bitwise")
def subgroup_of_the_ranks(world: World) -> None:
    """Two of the ranks train together; the others wait for them at the end of the case."""
    group = dist.new_group([0, 2])
    if world.rank in (0, 2):
        net = Net()
        _against_one_process(_of_module(copy.deepcopy(net), process_group=group), net)
        dist.destroy_process_group(group)


@case(family="bitwise")
def without_a_process_group_every_rank_works_for_itself(world: World) -> None:
    net = Net()
    these = _of_module(copy.deepcopy(net))
    for p in these.params:
        p.data.mul_(1 + world.rank)
    these.step(1 + world.rank)  # as many steps as it likes, on weights of its own
    assert these.optimizer.orthogonalized == len(these.params)


def _on_mesh(mesh: DeviceMesh, placements: list[Any]) -> None:
    matrices = (*everywhere(SHAPES[:6], 0), *everywhere(FUSED, 0))
    parts = [distribute_tensor(W, mesh, placements, src_data_rank=None) for W in weights(matrices)]
    params = [nn.Parameter(part) for part in parts]
    these, those = Training(matrices, params, Muon(grouped(matrices, params))), alone(matrices, Muon)
    these.step(8)
    those.step(8)
    # piece by piece: full_tensor() gathers in the order of ranks, whatever the mesh says
    for one, p, q in zip(matrices, these.params, those.params, strict=True):
        momenta = [training.optimizer.state[w]["momentum_buffer"] for training, w in ((these, p), (those, q))]
        for mine, expected in ((p, q), momenta):
            piece = like(expected.detach(), p).to_local()
            assert torch.equal(bits(mine.to_local()), bits(piece)), f"not the bits of one process: {one.label}"


@case(4, family="bitwise")
def mesh_that_shards_before_it_replicates(world: World) -> None:
    _on_mesh(world.mesh(2, 2), [Shard(0), Replicate()])


@case(4, family="bitwise")
def one_dimension_of_a_mesh(world: World) -> None:
    """Two pairs of ranks, each with all parameters: what tensor parallelism alone makes."""
    mesh = world.mesh(2, 2)
    _on_mesh(mesh[mesh.mesh_dim_names[0]], [Shard(0)])
    _on_mesh(mesh[mesh.mesh_dim_names[1]], [Shard(1)])


@case(2, 3, 4, family="bitwise")
def mesh_with_ranks_in_another_order(world: World) -> None:
    """Shards lie by place in the mesh, which is not the number of the rank."""
    order = list(range(world.size))[::-1]
    _on_mesh(DeviceMesh("cpu", order), [Shard(0)])
    if world.size == 4:
        _on_mesh(DeviceMesh("cpu", [[3, 1], [0, 2]]), [Replicate(), Shard(0)])
