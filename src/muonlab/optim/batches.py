"""The two halves of a Muon step around the orthogonalization: momenta into batches, results into weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from muonlab.optim.base import Part, by_group, move_momenta, move_weights, scalar, unless_skipped
from muonlab.optim.layout import Batch, Layout
from muonlab.optim.orthogonalizer import callable_of
from muonlab.optim.scaling import SCALES, norm_of_matrices, renormalize
from muonlab.optim.views import as_matrices, block_shapes, blocks, matrices_shape

_IN_CACHE = 1 << 21
"""Bytes of weights that are worked on together on a CPU, where stacking matrices gains nothing."""


def batches(parts: Sequence[Part]) -> Iterator[Batch]:
    """Yield matrices of equal shape and treatment together, their momenta moved on just before."""
    stacks: dict[tuple[Any, ...], list[Part]] = {}
    for part in parts:
        view, how = part.group["matrix_view"], part.group["orthogonalizer"]
        held = (blocks(t, view) for t in (part.weight, part.grad, part.momentum))
        for shape, weight, grad, momentum in zip(block_shapes(part.param.shape, view), *held, strict=True):
            block = replace(part, weight=weight, grad=grad, momentum=momentum) if isinstance(view, tuple) else part
            key = (how, matrices_shape(shape, view), weight.dtype, weight.device)
            stacks.setdefault(key, []).append(block)
    for (how, shape, *_), stack in stacks.items():
        for some in _handy(stack):
            # nothing here holds the matrices of a batch while it is worked on
            yield Batch(callable_of(how), shape, _moved(some), some)


def _handy(stack: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Yield a stack whole, on a CPU in pieces that stay in its cache from momentum to update."""
    size = max(1, _IN_CACHE // stack[0].weight.nbytes) if stack[0].weight.device.type == "cpu" else len(stack)
    for first in range(0, len(stack), size):
        yield stack[first : first + size]


def _moved(stack: Sequence[Part]) -> list[Tensor]:
    """Move the momenta of a stack on and return the matrices to orthogonalize."""
    matrices = []
    for members in by_group(stack):
        group = members[0].group
        directions = move_momenta(members, group, group["momentum_form"])
        matrices += [as_matrices(D, group["matrix_view"]) for D in directions]
    return matrices


def update(batch: Batch, results: Sequence[Tensor], layout: Layout) -> None:
    """Update the weights of a batch (Kim & Oh 2026, Algorithm 1, line 10), with the factor of its shape."""
    rows, columns = batch.shape[-2:]
    done = 0
    for members in by_group(batch.owners):
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
    for part in members:
        norm = layout.whole_norm(norm_of_matrices(part.weight, part.group["matrix_view"] == "batch"))
        renormalize(part.weight, norm, rows)
