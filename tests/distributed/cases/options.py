"""Every option and every registered optimizer, with all placements in one optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from muonlab.optim import SGDM, ExactPolar, Muon, MuonWithAux, NewtonSchulz, optimizers
from tests.distributed.problems import (
    MIXED,
    STEPS,
    Build,
    Matrix,
    Training,
    World,
    agree,
    compare,
    everywhere,
    grouped,
    params_of,
    weights,
)
from tests.distributed.registry import case

FEWER = 4
"""Steps: a bit that differs does so at once, and every layout takes more of them elsewhere."""
paper = partial(Muon.paper, lr=0.05, momentum=0.9)
RENORMALIZED = everywhere((Matrix((12, 16)), Matrix((5, 13)), Matrix((2, 9)), Matrix((5, 2, 3, 3))), 0)
OPTIONS: dict[str, Build] = {
    "paper_algorithm": paper,
    "paper_experiments": partial(paper, variant="experiments"),
    "paper_svd": partial(paper, polar="svd"),
    "renormalize_after": partial(Muon, renormalize="after"),
    "heavy_ball_nesterov_decay": partial(
        Muon, momentum_form="heavy_ball", nesterov=True, weight_decay=0.3, scale="match_rms_adamw"
    ),
    "exact_polar": partial(Muon, orthogonalizer=ExactPolar()),
    "exact_polar_by_gram": partial(Muon, orthogonalizer=ExactPolar(method="gram"), scale="spectral"),
    "jordan_of_a_climber": partial(Muon, orthogonalizer=NewtonSchulz("jordan", steps=5), maximize=True, nesterov=False),
    "spectral_prescale": partial(Muon, orthogonalizer=NewtonSchulz("jordan", steps=3, prescale="spectral")),
    "tensor_lr": lambda groups, **options: Muon(groups, torch.tensor(0.03), **options),
    "watched_and_finite": partial(Muon, nonfinite="raise"),
    "skipping_and_finite": partial(Muon, nonfinite="skip"),
}


def _option(world: World, build: Build) -> None:
    compare(world, MIXED, build, steps=FEWER)


for name, build in OPTIONS.items():
    case(2, family="bitwise", name=f"option_{name}", build=build)(_option)


def _renormalized(world: World, where: Any, when: str, shape: tuple[int, ...] = ()) -> None:
    compare(world, everywhere(RENORMALIZED, where), partial(paper, renormalize=when, weight_decay=0.1), shape, FEWER)


for where in (0, 1, "plain", "replicate"):
    for when in ("before", "after"):
        name = f"renormalize_{when}_{where}"
        case(2, 3, family="bitwise", name=name, where=where, when=when)(_renormalized)
        if where in (0, 1):
            case(4, family="bitwise", name=f"hsdp_{name}", where=where, when=when, shape=(2, 2))(_renormalized)


def _registered(world: World, build: Callable[..., Any]) -> None:
    def made(groups: Any, **options: Any) -> Any:
        optimizer = build(groups, lr=0.05, momentum=0.9, **options)
        for group in optimizer.param_groups if build is SGDM else ():
            group.pop("matrix_view")
        return optimizer

    compare(world, MIXED, made, steps=FEWER)


for entry in optimizers().values():
    name = f"registered_{entry.name.replace('.', '_')}"
    case(2, family="bitwise", name=name, build=entry.build)(_registered)


@case(2, family="bitwise")
def several_groups(world: World) -> None:
    """Groups with options of their own, whose matrices are of the same shapes and so meet in one batch."""

    def build(groups: list[dict[str, Any]], **options: Any) -> Muon:
        own = [{"lr": 0.1, "weight_decay": 0.2}, {"momentum": 0.5, "nesterov": False}, {"renormalize": "before"}]
        own.append({"orthogonalizer": NewtonSchulz("jordan", steps=3), "momentum_form": "heavy_ball"})
        number = {one.label: i for i, one in enumerate(MIXED)}
        split = [
            {"params": [named], "matrix_view": group["matrix_view"], **own[number[named[0]] % len(own)]}
            for group in groups
            for named in group["params"]
        ]
        return Muon(split, **options)

    compare(world, MIXED, build, steps=FEWER)


def _with_aux(world: World, aux: Callable[[list[Any]], Any]) -> None:
    vectors = (Matrix((7,), name="bias"), Matrix((24,), name="gain"), Matrix((1,), name="one"))
    matrices = (*MIXED, *everywhere(vectors, 0))

    def build(groups: list[dict[str, Any]], **options: Any) -> MuonWithAux:
        named = [one for group in groups for one in group["params"]]
        rest = [p for name, p in named if p.ndim == 1]
        kept = [{**group, "params": [one for one in group["params"] if one[1].ndim > 1]} for group in groups]
        return MuonWithAux(Muon(kept, weight_decay=0.1, **options), aux(rest))

    compare(world, matrices, build, steps=FEWER, apart=False)


case(1, 2, family="bitwise", name="aux_sgdm", aux=lambda rest: SGDM(rest, 0.1, 0.9, nonfinite="raise"))(_with_aux)
case(1, 2, family="bitwise", name="aux_adamw", aux=lambda rest: torch.optim.AdamW(rest, 0.01, foreach=False))(_with_aux)


@case(family="bitwise")
def sgdm_in_a_process_group(_: World) -> None:
    vectors = tuple(Matrix(shape, "flatten", "plain", str(shape)) for shape in ((5,), (4, 6), (2, 3, 4)))
    made = [[nn.Parameter(W) for W in weights(vectors)] for _ in range(2)]
    group = dist.group.WORLD
    these = Training(vectors, made[0], SGDM(made[0], 0.1, 0.9, nonfinite="skip", process_group=group))
    those = Training(vectors, made[1], SGDM(made[1], 0.1, 0.9, nonfinite="skip"))
    these.step(STEPS)
    those.step(STEPS)
    agree(these, those)


@case(2, 3, family="bitwise")
def float64(world: World) -> None:
    """Another dtype beside float32: the momenta and what is sent keep it."""
    matrices = everywhere((Matrix((6, 9)), Matrix((5, 3)), Matrix((1, 4))), 0)
    sides = [params_of(world, matrices), [nn.Parameter(W) for W in weights(matrices)]]
    trainings = []
    for params in sides:
        wide = [nn.Parameter(p.detach().double()) if i % 2 else p for i, p in enumerate(params)]
        trainings.append(Training(matrices, wide, Muon(grouped(matrices, wide))))
    for training in trainings:
        for step in range(STEPS):
            _step_in_their_dtypes(training, step)
    agree(*trainings)


def _step_in_their_dtypes(training: Training, step: int) -> None:
    from tests.distributed.problems import gradients, like

    for p, G in zip(training.params, gradients(training.matrices, step), strict=True):
        p.grad = like(G.to(p.dtype), p)
    training.optimizer.step()


@case(2, family="bitwise")
def a_group_added_later(world: World) -> None:
    first, later = MIXED[:6], MIXED[6:12]

    def build(groups: list[dict[str, Any]], **options: Any) -> Muon:
        names = {one.label for one in later}
        kept = [{**g, "params": [one for one in g["params"] if one[0] not in names]} for g in groups]
        added = [{**g, "params": [one for one in g["params"] if one[0] in names]} for g in groups]
        optimizer = Muon([group for group in kept if group["params"]], **options)
        optimizer.later = [group for group in added if group["params"]]
        return optimizer

    from tests.distributed.problems import alone, distributed

    trainings = distributed(world, (*first, *later), build), alone((*first, *later), build)
    for training in trainings:
        training.step(3)
        for group in training.optimizer.later:
            training.optimizer.add_param_group(group)
        training.step(STEPS)
    agree(*trainings)
