"""State: saved and loaded in the ranks, moved between layouts, hooks, and a process group that is made anew."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from muonlab.optim import Muon, MuonWithAux, split_params
from tests.distributed.cases.traffic import labels
from tests.distributed.problems import (
    MIXED,
    Matrix,
    Training,
    World,
    agree,
    alone,
    distributed,
    grouped,
    like,
    whole,
)
from tests.distributed.registry import case

BUILD = partial(Muon, weight_decay=0.1)


@case(2, 3, family="bitwise")
def state_dict_round_trip(world: World) -> None:
    """A new optimizer takes the state over and goes on to the bit; what belongs to this group of ranks is not in it."""
    these, those = distributed(world, MIXED, BUILD), alone(MIXED, BUILD)
    these.step(5)
    those.step(5)
    saved = copy.deepcopy(these.optimizer.state_dict())
    for group in saved["param_groups"]:
        assert not {"process_group", "comm_dtype"} & set(group), sorted(group)
    params = [nn.Parameter(p.detach().clone()) for p in these.params]
    fresh = Training(MIXED, params, BUILD(grouped(MIXED, params), process_group=dist.group.WORLD), taken=5)
    fresh.optimizer.load_state_dict(saved)
    fresh.step(5)
    those.step(5)
    agree(fresh, those)


def _net(seed: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 5))


def _optimizer(net: nn.Module, **options: Any) -> MuonWithAux:
    split = split_params(net)
    return MuonWithAux(Muon(split.matrices, 0.05, **options), torch.optim.AdamW(split.rest, 0.01, foreach=False))


def _drive(net: nn.Module, optimizer: Any, steps: Sequence[int]) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for p in net.parameters():
            p.grad = like(torch.randn(p.shape, generator=generator), p)
        optimizer.step()


def _same(net: nn.Module, other: nn.Module) -> None:
    apart = [name for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True) if not same(p, q)]
    assert not apart, f"not the bits of one process: {apart}"


def same(p: torch.Tensor, q: torch.Tensor) -> bool:
    return torch.equal(whole(p), whole(q))


def _checkpoint(world: World, shape: tuple[int, ...], full: bool) -> None:
    """torch.distributed.checkpoint's state of an FSDP2 model goes into a new one, which then walks with one process."""
    one, sharded, later = _net(), _net(), _net()
    for net in (sharded, later):
        fully_shard(net, mesh=world.mesh(*shape))
    alone_, before = _optimizer(one), _optimizer(sharded)
    _drive(one, alone_, range(4))
    _drive(sharded, before, range(4))
    options = StateDictOptions(full_state_dict=full)
    state = get_optimizer_state_dict(sharded, before, options=options)
    momenta = [t for kinds in state["state"].values() for key, t in kinds.items() if key == "momentum_buffer"]
    assert len(momenta) == 2
    assert all(isinstance(t, DTensor) is not full for t in momenta)
    with torch.no_grad():
        for p, q in zip(later.parameters(), sharded.parameters(), strict=True):
            p.copy_(q)
    after = _optimizer(later)
    set_optimizer_state_dict(later, after, state, options=options)
    _drive(one, alone_, range(4, 8))
    _drive(later, after, range(4, 8))
    _same(later, one)


case(2, 3, family="bitwise", name="checkpoint_state_fsdp", shape=(), full=False)(_checkpoint)
case(1, 3, family="bitwise", name="checkpoint_state_fsdp_gathered", shape=(), full=True)(_checkpoint)
case(4, family="bitwise", name="checkpoint_state_hsdp", shape=(2, 2), full=False)(_checkpoint)


@case(2, 3, family="bitwise")
def state_of_shards_moves_to_one_process(world: World) -> None:
    """The gathered state of the ranks continues in one process without ranks."""
    one, sharded, later = _net(), _net(), _net()
    fully_shard(sharded, mesh=world.mesh())
    alone_, before, after = _optimizer(one), _optimizer(sharded), _optimizer(later)
    _drive(one, alone_, range(4))
    _drive(sharded, before, range(4))
    state = get_optimizer_state_dict(sharded, before, options=StateDictOptions(full_state_dict=True))
    with torch.no_grad():
        for p, q in zip(later.parameters(), sharded.parameters(), strict=True):
            p.copy_(whole(q))
    set_optimizer_state_dict(later, after, state, options=StateDictOptions(full_state_dict=True))
    _drive(one, alone_, range(4, 8))
    _drive(later, after, range(4, 8))
    _same(later, one)


@case(family="hooks")
def hooks_see_each_matrix_once(world: World) -> Any:
    """Hooks get whole matrices, on the owner only; what they write does not reach the weights."""
    plain = partial(Muon, momentum=0.0, nesterov=False, momentum_form="heavy_ball")
    matrices = tuple(one for one in MIXED if one.view != "batch")
    these, those = distributed(world, matrices, plain), alone(matrices, plain)
    found = {}
    for side, training in {"ranks": these, "alone": those}.items():
        seen = found[side] = []

        def hook(params: Any, M: torch.Tensor, O: torch.Tensor, seen: list[Any] = seen) -> None:
            import zlib

            from tests.distributed.problems import bits

            assert len(params) == len(M) == len(O)
            for single, result in zip(M, O, strict=True):
                crcs = [zlib.crc32(bits(t).numpy().tobytes()) for t in (single, result)]
                seen.append([labels(matrices, 0).get(crcs[0], "unknown"), crcs[1]])
            M.zero_()
            O.zero_()

        handle = training.optimizer.register_orthogonalize_hook(hook)
        training.step()
        handle.remove()
        training.step()
    agree(these, those)
    return found


@case(family="bitwise")
def empty_parameters_are_left_alone(world: World) -> None:
    matrices = (Matrix((0, 4), where="plain", name="none"), Matrix((6, 4), where="plain", name="some"))
    these, those = distributed(world, matrices, BUILD), alone(matrices, BUILD)
    these.step(3)
    those.step(3)
    agree(these, those)
