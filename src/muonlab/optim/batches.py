"""The two halves of a Muon step around the orthogonalization: momenta into batches, results into weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from torch import Tensor

from muonlab.optim.base import move_momenta, move_weights, scalar
from muonlab.optim.finite import unless_skipped
from muonlab.optim.layout import Batch, Block, Layout
from muonlab.optim.orthogonalizer import callable_of
from muonlab.optim.part import Part, by_group
from muonlab.optim.scaling import SCALES, renormalize


def batches(parts: Sequence[Part]) -> Iterator[Batch]:
    """Yield matrices of equal shape and treatment together, their momenta moved on just before."""
    stacks: dict[tuple[Any, ...], list[Part]] = {}
    for piece in pieces(parts):
        block, weight = cast(Block, piece.block), piece.weight
        key = (piece.group["orthogonalizer"], block.matrices, block.stays, weight.dtype, weight.device)
        stacks.setdefault(key, []).append(piece)
    for (how, shape, *_), stack in stacks.items():
        for some in _handy(stack):
            # nothing here holds the matrices of a batch while it is worked on
            yield Batch(callable_of(how), shape, _moved(some), some)


def pieces(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield what a process holds of every block, block by block."""
    for part in parts:
        blocks = part.layout.blocks(part.param, part.group["matrix_view"])
        held = (part.layout.pieces(t, blocks) for t in (part.weight, part.grad, part.momentum))
        for i, (block, weight, grad, momentum) in enumerate(zip(blocks, *held, strict=True)):
            yield part._replace(weight=weight, grad=grad, momentum=momentum, block=block, number=i)


def whole_gradients(parts: Sequence[Part], layout: Layout) -> dict[tuple[Tensor, int], Tensor]:
    """Return the gradients of the blocks that this process orthogonalizes, by parameter and number of the block."""
    of = list(pieces(parts))
    wholes = layout.wholes(of, [part.grad for part in of])
    return {(of[i].param, of[i].number): gradient for i, gradient in wholes.items()}


def _handy(stack: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Yield a stack whole, or by as many as its layout has room for; every rank by the same, whatever it holds."""
    one, room = stack[0], stack[0].layout.room(stack[0].weight.device)
    whole = math.prod(cast(Block, one.block).shape) * one.weight.element_size()
    size = len(stack) if room is None else max(1, room // whole)
    for first in range(0, len(stack), size):
        yield stack[first : first + size]


def _moved(stack: Sequence[Part]) -> list[Tensor]:
    """Move the momenta of a stack on and return what this process holds of the matrices to orthogonalize."""
    found = []
    for members in by_group(stack):
        group = members[0].group
        found += move_momenta(members, group, group["momentum_form"])
    return found


def update(batch: Batch, results: Sequence[Tensor], layout: Layout) -> None:
    """Update the weights of a batch (Kim & Oh 2026, Algorithm 1, line 10), with the factor of its shape."""
    rows, columns = batch.shape[-2:]
    done = 0
    for members in by_group(batch.parts):
        group = members[0].group
        directions = [O.view(p.weight.shape) for O, p in zip(results[done:], members, strict=False)]
        done += len(members)
        renormalized = group["renormalize"] if _moves(group) else None
        with unless_skipped(members, [part.weight for part in members]):
            if renormalized == "before":
                _renormalize(members, rows, layout)
            move_weights(members, group, directions, SCALES[group["scale"]](rows, columns))
            if renormalized == "after":
                _renormalize(members, rows, layout)


def _moves(group: Mapping[str, Any]) -> bool:
    """Tell whether the group is to move at all; checkpoint libraries make room for state by a step with lr 0."""
    lr = scalar(group["lr"])
    return isinstance(lr, Tensor) or lr != 0


def _renormalize(members: Sequence[Part], rows: int, layout: Layout) -> None:
    for part, norm in zip(members, layout.norms(members), strict=True):
        renormalize(part.weight, norm, rows)
