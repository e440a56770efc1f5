"""What each rank sends and orthogonalizes in every step, and who owns what."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from muonlab.optim import Muon, NewtonSchulz
from muonlab.optim.views import matrix_blocks, split_tensor
from muonlab.polynomials import taylor
from tests.distributed.problems import (
    FUSED,
    MIXED,
    SHAPES,
    STACKS,
    Matrix,
    Training,
    World,
    alone,
    bits,
    differing,
    distributed,
    everywhere,
    gradients,
    like,
)
from tests.distributed.registry import case
from tests.distributed.wire import Wire

PLAIN = partial(Muon, momentum=0.0, nesterov=False, momentum_form="heavy_ball")
"""Orthogonalizes the gradients themselves, so that every rank can tell which matrix it was given."""
STEPS = 3


def _crc(tensor: Tensor) -> int:
    return zlib.crc32(bits(tensor).numpy().tobytes())


def labels(matrices: Sequence[Matrix], step: int) -> dict[int, str]:
    """Return the name of each single matrix of a step's gradients by its bits."""
    found = {}
    for one, G in zip(matrices, gradients(matrices, step), strict=True):
        blocks = matrix_blocks(one.shape, one.view)
        for number, (block, part) in enumerate(zip(blocks, split_tensor(G, one.view, blocks), strict=True)):
            M = block.read(part)
            for place, single in enumerate(M if M.ndim == 3 else [M]):
                found[_crc(single)] = f"{one.label}/{number}/{place}"
    return found


def watch(training: Training, matrices: Sequence[Matrix], steps: int = STEPS) -> list[dict[str, Any]]:
    """Take steps and return what this rank sent, counted and owned in each."""
    found = []
    for step in range(steps):
        names, seen = labels(matrices, step), []
        by_param = {p: one.label for one, p in zip(matrices, training.params, strict=True)}

        def hook(params: tuple[Tensor, ...], M: Tensor, O: Tensor, names=names, seen=seen, by_param=by_param) -> None:
            for p, single, result in zip(params, M, O, strict=True):
                name = names.get(_crc(single), "a matrix that no gradient has")
                assert name.startswith(by_param[p]) or "no gradient" in name, f"{name} came as {by_param[p]}"
                seen.append([name, _crc(result)])

        handle = training.optimizer.register_orthogonalize_hook(hook)
        with Wire() as wire:
            training.step()
        handle.remove()
        found.append(
            {
                "bytes": wire.bytes,
                "to_self": wire.to_self,
                "calls": wire.calls,
                "others": wire.others,
                "orthogonalized": training.optimizer.orthogonalized,
                "seen": seen,
            }
        )
    return found


PROBLEMS = {
    "replicated": (everywhere((*SHAPES, *FUSED, *STACKS), "plain"), ()),
    "dtensor_replicate": (everywhere((*SHAPES, *FUSED), "replicate"), ()),
    "shard0": (everywhere((*SHAPES, *FUSED, *STACKS), 0), ()),
    "shard1": (everywhere((*SHAPES, *FUSED, *STACKS), 1), ()),
    "shard2": (everywhere(STACKS, 2), ()),
    "hsdp": (everywhere((*SHAPES, *FUSED), 0), (2, 2)),
    "hsdp1": (everywhere((*SHAPES, *FUSED), 1), (2, 2)),
}


def _traffic(world: World, problem: str) -> Any:
    matrices, shape = PROBLEMS[problem]
    mine = watch(distributed(world, matrices, PLAIN, shape), matrices)
    return {"steps": mine, "alone": watch(alone(matrices, PLAIN), matrices)}


for problem, (_, shape) in PROBLEMS.items():
    case(*((4,) if shape else ()), family="traffic", name=f"traffic_{problem}", problem=problem)(_traffic)


@case(4, family="counts")
def counts_hsdp_stack(world: World) -> Any:
    matrices = everywhere(STACKS, 0)
    return watch(distributed(world, matrices, PLAIN, (2, 2)), matrices)


@case(family="small messages")
def small_messages(world: World) -> Any:
    """Watched gradients and rescaled weights: what they cost beside the matrices."""
    found = {}
    for name, options in {"watched": {"nonfinite": "raise"}, "rescaled": {"renormalize": "before"}}.items():
        matrices = everywhere(SHAPES, 0)
        found[name] = watch(distributed(world, matrices, partial(PLAIN, **options)), matrices)
    return found


@case(family="implicit")
def no_implicit_communication(world: World) -> Any:
    """Count collectives below torch.distributed, where maths on distributed tensors would show."""
    from torch.distributed.tensor.debug import CommDebugMode

    training = distributed(world, MIXED, partial(Muon, weight_decay=0.1, nonfinite="skip"))
    training.step()
    calls = []
    for p, G in zip(training.params, gradients(MIXED, 1), strict=True):
        p.grad = like(G, p)
    with CommDebugMode() as mode, Wire() as wire:
        training.optimizer.step()
    for operation, count in mode.get_comm_counts().items():
        calls.append([str(operation), int(count)])
    return {"below": calls, "above": wire.calls + len(wire.others)}


HALF = (Matrix((12, 48)), Matrix((40, 9)), Matrix((5, 30)), Matrix((36, 6), (15, 21)), Matrix((6, 2, 3, 3)))


def _half(world: World, where: Any, shape: tuple[int, ...] = ()) -> Any:
    """Send bfloat16: half the bytes, replicas that stay alike, weights near those of float32."""
    matrices = everywhere(HALF, where)
    build = partial(Muon, lr=0.01, orthogonalizer=NewtonSchulz(taylor(2), steps=3))
    full, half = (
        distributed(world, matrices, partial(build, comm_dtype=dtype), shape) for dtype in (None, torch.bfloat16)
    )
    with Wire() as wires:
        full.step(20)
    with Wire() as halved:
        half.step(20)
    pairs = zip(full.tensors().values(), half.tensors().values(), strict=True)
    apart = max(float((a - b).abs().max()) for a, b in pairs)
    crcs = {name: _crc(t) for name, t in half.tensors().items()}
    momenta = [name for name in differing(full.tensors(), half.tensors()) if "momentum" in name]
    return {"full": wires.bytes, "half": halved.bytes, "apart": apart, "crcs": crcs, "momenta": momenta}


for size, where in ((2, "plain"), (2, 0), (3, 0), (3, 1), (3, "replicate"), (4, "plain")):
    case(size, family="half", name=f"bfloat16_{where}_on_{size}", where=where)(_half)
for where in (0, 1):
    case(4, family="half", name=f"bfloat16_hsdp_{where}", where=where, shape=(2, 2))(_half)
