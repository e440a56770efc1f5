"""What one rank does wrong, all hear of: absent gradients, NaN, plans that differ, placements that nobody serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from muonlab.optim import ExactPolar, Muon
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
    like,
)
from tests.distributed.registry import case

NAMED = tuple(Matrix(shape, name=f"layer{i}") for i, shape in enumerate(((12, 16), (8, 5), (16, 12), (4, 4, 2))))
BUILD = partial(Muon, weight_decay=0.1)


def attempt(function: Callable[[], Any]) -> list[str] | None:
    """Return type and message of what a call raised, or None."""
    try:
        function()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


def inject(training: Training, grads: Sequence[Tensor | None]) -> None:
    """Put whole gradients into their places."""
    for p, G in zip(training.params, grads, strict=True):
        p.grad = None if G is None else like(G, p)


def local(tensor: Tensor) -> Tensor:
    """Return what this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# ---------------------------------------------------------------------------------------------------- absent gradients


def _absent_everywhere(world: World, where: Any) -> None:
    matrices = everywhere(NAMED, where)
    these, those = distributed(world, matrices, BUILD), alone(matrices, BUILD)

    def drop(step: int, grads: list[Tensor | None]) -> None:
        for i in range(len(grads)):
            if step == 0 or (step + i) % 3 == 0:  # in the first step all of them
                grads[i] = None

    for training in (these, those):
        training.step(10, drop)
    agree(these, those)


def _absent_on_one(world: World, where: int, shape: tuple[int, ...] = ()) -> Any:
    """The last rank has no gradient for one parameter: zeros on its shard."""
    matrices = everywhere(NAMED, where)
    these, those = distributed(world, matrices, BUILD, shape), alone(matrices, BUILD)
    for step in range(6):
        grads = gradients(matrices, step)
        inject(these, grads)
        if world.rank == world.size - 1:
            these.params[1].grad = None
        if world.size == 1:
            grads[1] = None
        else:
            lost = grads[1].chunk(world.size, where)
            lost[-1].zero_() if len(lost) == world.size else None
        inject(those, grads)
        these.optimizer.step()
        those.optimizer.step()
    agree(these, those)


def _absent_on_one_copy(world: World, where: Any, shape: tuple[int, ...] = ()) -> Any:
    """The last rank has no gradient where another rank holds the same entries: refused, and nothing has changed."""
    matrices = everywhere(NAMED, where)
    these, those = distributed(world, matrices, BUILD, shape), alone(matrices, BUILD)
    these.step(2)
    those.step(2)
    inject(these, gradients(matrices, 2))
    if world.rank == world.size - 1:
        these.params[1].grad = None
    raised = attempt(these.optimizer.step)
    agree(these, those)
    these.step(3)  # all ranks are still in step
    those.step(3)
    agree(these, those)
    return raised


SIZES: dict[Any, tuple[int, ...]] = {"plain": (1, 2, 4), "replicate": (2, 3), 0: (2, 3, 4), 1: (2, 3)}
"""Numbers of ranks by placement: each fault meets copies and shards, even and uneven, and not all of them at all N."""
for where, sizes in SIZES.items():
    case(*sizes, family="bitwise", name=f"absent_everywhere_{where}", where=where)(_absent_everywhere)
for where in (0, 1):
    case(*SIZES[where], family="bitwise", name=f"absent_on_one_{where}", where=where)(_absent_on_one)
for where in ("plain", "replicate"):
    case(*{*SIZES[where]} - {1}, family="absent copy", name=f"absent_copy_{where}", where=where)(_absent_on_one_copy)
case(4, family="absent copy", name="absent_copy_hsdp", where=0, shape=(2, 2))(_absent_on_one_copy)


# ----------------------------------------------------------------------------------------------------------------- NaN


def _spoiled(training: Training, world: World, step: int, value: float) -> list[Tensor]:
    """Put a bad entry into the gradient of one rank; return the whole gradients as one process would see them."""
    grads = gradients(training.matrices, step)
    inject(training, grads)
    bad = training.params[2].grad
    if world.rank == world.size - 1:
        local(bad).view(-1)[-1] = value
    grads[2].view(-1)[-1] = value
    return grads


def _nan_raises(world: World, where: Any, shape: tuple[int, ...] = ()) -> Any:
    build = partial(BUILD, nonfinite="raise")
    matrices = everywhere(NAMED, where)
    these, those = distributed(world, matrices, build, shape), alone(matrices, build)
    these.step(2)
    those.step(2)
    _spoiled(these, world, 2, torch.nan)
    raised = attempt(these.optimizer.step)
    agree(these, those)
    these.step(2)
    those.step(2)
    agree(these, those)
    return raised


def _nan_skips(world: World, where: Any, shape: tuple[int, ...] = ()) -> None:
    build = partial(BUILD, nonfinite="skip", renormalize="before")
    matrices = everywhere(NAMED, where)
    these, those = distributed(world, matrices, build, shape), alone(matrices, build)
    for step, value in enumerate((None, torch.nan, None, torch.inf, None)):
        if value is None:
            these.step()
            those.step()
            continue
        inject(those, _spoiled(these, world, step, value))
        these.optimizer.step()
        those.optimizer.step()
        these.taken += 1
        those.taken += 1
    agree(these, those)
    assert all(torch.isfinite(t).all() for t in these.tensors().values())


def _nan_propagates(world: World, where: Any, shape: tuple[int, ...] = ()) -> list[str]:
    matrices = everywhere(NAMED, where)
    these = distributed(world, matrices, BUILD, shape)
    these.step()
    _spoiled(these, world, 1, torch.nan)
    these.optimizer.step()
    these.step(2)  # all ranks are still in step
    return [name for name, t in these.tensors().items() if torch.isnan(t).any()]


for where, sizes in SIZES.items():
    case(*sizes, family="nan raise", name=f"nan_raises_{where}", where=where)(_nan_raises)
    case(*sizes, family="bitwise", name=f"nan_skips_{where}", where=where)(_nan_skips)
    case(*sizes, family="nan propagate", name=f"nan_propagates_{where}", where=where)(_nan_propagates)
case(4, family="nan raise", name="nan_raises_hsdp", where=0, shape=(2, 2))(_nan_raises)
case(4, family="bitwise", name="nan_skips_hsdp", where=0, shape=(2, 2))(_nan_skips)


def _overflow(world: World, where: Any) -> None:
    """A large momentum on one rank and a large gradient on another: one process would skip, so all ranks do."""
    build = partial(Muon, momentum=0.9, momentum_form="heavy_ball", nesterov=False, nonfinite="skip")
    matrices = everywhere((Matrix((8, 8), name="W"),), where)
    these, those = distributed(world, matrices, build), alone(matrices, build)
    for corner in (0, -1, 0):
        G = torch.ones(8, 8)
        G.view(-1)[corner] = 2e38
        for training in (these, those):
            inject(training, [G])
            training.optimizer.step()
    agree(these, those)


for where in ("plain", 0, 1):
    case(2, 3, family="bitwise", name=f"overflow_split_over_ranks_{where}", where=where)(_overflow)


# ------------------------------------------------------------------------------------------------- plans that differ


def params_with_gradients(world: World, where: Any) -> list[tuple[str, Tensor]]:
    from tests.distributed.problems import params_of

    matrices = everywhere(NAMED[:3], where)
    named = [(one.name, p) for one, p in zip(matrices, params_of(world, matrices), strict=True)]
    for (_, p), G in zip(named, gradients(matrices, 0), strict=True):
        p.grad = like(G, p)
    return named


def _without_its_group(named: list[Any]) -> Any:
    return [{"params": named[:2]}, {"params": []}]


def _in_another_order(named: list[Any]) -> Any:
    return [{"params": [named[1], named[0]]}, {"params": named[2:]}]


def _with_one_more(named: list[Any]) -> Any:
    more = nn.Parameter(named[0][1].detach().clone())
    more.grad = named[0][1].grad.clone()
    return [{"params": named[:2]}, {"params": [*named[2:], ("more", more)]}]


def _of_another_shape(named: list[Any]) -> Any:
    other = nn.Parameter(torch.randn(9, 16))
    other.grad = torch.randn(9, 16)
    return [{"params": named[:2]}, {"params": [("layer2", other)]}]


def _with_another_orthogonalizer(named: list[Any]) -> Any:
    return [{"params": named[:2]}, {"params": named[2:], "orthogonalizer": ExactPolar()}]


def _with_another_view(named: list[Any]) -> Any:
    return [{"params": named[:2]}, {"params": named[2:], "matrix_view": (7, 9)}]


def _plans(world: World, where: Any, change: Callable[[list[Any]], Any], odd: int) -> Any:
    """One rank builds its optimizer in another way."""
    named = params_with_gradients(world, where)
    before = {name: local(p).detach().clone() for name, p in named}
    groups = change(named) if world.rank == odd else [{"params": named[:2]}, {"params": named[2:]}]
    bare = [{**group, "params": [p for _, p in group["params"]]} for group in groups]
    options = {"process_group": dist.group.WORLD} if where == "plain" else {}
    raised = attempt(lambda: Muon(bare, **options).step())
    unchanged = differing(before, {name: local(p).detach() for name, p in named}) == []
    matrices = everywhere(NAMED, where)
    these, those = distributed(world, matrices, BUILD), alone(matrices, BUILD)
    these.step()  # all ranks are still in step
    those.step()
    agree(these, those)
    return {"raised": raised, "unchanged": unchanged}


CHANGES = (
    _without_its_group,
    _in_another_order,
    _with_one_more,
    _of_another_shape,
    _with_another_orthogonalizer,
    _with_another_view,
)
for where in ("plain", "replicate", 0):
    for change in CHANGES:
        if where == "plain" or change is not _of_another_shape:
            name = f"plan{change.__name__}_{where}"
            sizes = (2, 3, 4) if where != "replicate" and change is _without_its_group else (2,)
            case(*sizes, family="plan", name=name, where=where, change=change, odd=1)(_plans)
