"""One step of an optimizer, from gradients to weights, in the order in which it happens.

:func:`muon_step` is Algorithm 1 of Kim & Oh (2026), with the options of :class:`muonlab.Muon`; :func:`sgdm_step` is
Algorithm 3. The functions below them follow in the order of the step; helpers stand where they are first needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor

from muonlab.optim.distributed.tensors import local_part
from muonlab.optim.hooks import OrthogonalizeHooks
from muonlab.optim.layout import Batch, FinishedBatches, GroupedParam, Layout, Layouts, Piece, param_blocks
from muonlab.optim.scaling import SCALES, norm_factors
from muonlab.optim.stack import MatrixStack
from muonlab.optim.views import split_tensor
from muonlab.orthogonalize.workspace import Workspaces


def muon_step(
    params: Sequence[GroupedParam], layouts: Layouts, hooks: OrthogonalizeHooks, workspaces: Workspaces
) -> int:
    """Take a step of Muon (Kim & Oh 2026, Algorithm 1) and return how many matrices this process orthogonalized."""
    pieces = check_finite(collect(params, layouts.agree_on_gradients(params, hooks.signature)))  # line 3: G_t
    hooks.begin_step(pieces)
    for layout in dict.fromkeys(piece.layout for piece in pieces):
        blocks = [block for piece in pieces if piece.layout is layout for block in split_blocks(piece)]
        if hooks.want_gradients:
            hooks.add_gradients(blocks, layout.gather(blocks, [block.grad for block in blocks]))
        pipeline = layout.pipeline(hooks.show)
        for chunk in split_chunks(stack_by_shape(blocks), layout):
            stack = stack_for(chunk, layout, workspaces)  # on an accelerator: where the directions are written
            batch = Batch(chunk, update_momentum(chunk, stack), stack)  # line 4: M_t
            finished = pipeline.orthogonalize(batch)  # lines 5-9: O_t; the layout decides where
            update_weights(finished)  # line 10: W_t
            del stack, batch, finished  # free their memory before the next chunk
            workspaces.finish_stack()
        update_weights(pipeline.finish())
    return hooks.end_step()


def sgdm_step(params: Sequence[GroupedParam], layouts: Layouts) -> None:
    """Take a step of SGD with momentum (Kim & Oh 2026, Algorithm 3)."""
    for pieces in by_group(check_finite(collect(params, layouts.agree_on_gradients(params)))):
        with restore_skipped(pieces, [piece.weight for piece in pieces]):
            decay_and_move(pieces, update_momentum(pieces), scale=1.0)


# ----------------------------------------------------------------------------------------------- collect and check


def collect(params: Sequence[GroupedParam], have_gradients: Sequence[bool]) -> list[Piece]:
    """Return what this process holds of every parameter that has a gradient on some process."""
    pieces = []
    for (group, name, param, momentum, layout), has_gradient in zip(params, have_gradients, strict=True):
        if not has_gradient:
            continue
        # another shard has a gradient, so this one counts as zeros; replicas that differ have raised in
        # agree_on_gradients
        grad = torch.zeros_like(param) if param.grad is None else _dense(param.grad, param, name)
        M = local_part(momentum)
        pieces.append(Piece(param, group, name, layout, local_part(param), local_part(grad).to(M.dtype), M))
    return pieces


def _dense(grad: Tensor, param: Tensor, name: str) -> Tensor:
    """Return the gradient; raise if it is sparse, or placed differently from its parameter."""
    if grad.layout != torch.strided:
        raise RuntimeError(
            f"gradients must be dense, got one of layout {grad.layout} for {name}: "
            f"use sparse=False in its layer, or give it to torch.optim.SparseAdam"
        )
    placements, expected = getattr(grad, "placements", None), getattr(param, "placements", None)
    if placements != expected:
        raise TypeError(
            f"a gradient must be placed like its parameter, got {placements} for {name} with {expected}: leave p.grad "
            f"as backward() made it, or redistribute it"
        )
    return grad


def check_finite(pieces: list[Piece]) -> list[Piece]:
    """Compute for each piece whether it stays finite, if ``nonfinite`` needs it.

    With ``"raise"``, raise if one does not. The error comes before any change. The check reads one number from each
    device.
    """
    watched: dict[tuple[Any, ...], list[int]] = {}
    for i, piece in enumerate(pieces):
        if piece.group["nonfinite"] != "propagate":
            watched.setdefault((piece.layout, piece.grad.device, _wide_dtype(piece.grad)), []).append(i)
    if not watched:
        return pieces
    flagged = list(pieces)
    for (layout, _, dtype), indices in watched.items():
        largest = layout.max_over_ranks(_largest_entries([pieces[i] for i in indices], dtype))
        for run in _runs_of_one_check(pieces, indices):
            flags = _stays_finite(pieces[indices[run.start]], *largest[:, run])
            for i, finite in zip(indices[run], flags.unbind(), strict=True):
                flagged[i] = pieces[i]._replace(finite=finite)
    _raise_nonfinite(flagged)
    return flagged


def _wide_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _largest_entries(pieces: Sequence[Piece], dtype: torch.dtype) -> Tensor:
    """Return the largest absolute entries of the local gradients, and below them those of the local momenta."""
    tensors = [piece.grad for piece in pieces] + [piece.momentum for piece in pieces]
    full = [t for t in tensors if t.numel()]
    norms = iter(torch._foreach_norm(full, torch.inf, dtype) if full else ())
    return torch.stack([next(norms) if t.numel() else t.new_zeros((), dtype=dtype) for t in tensors]).view(2, -1)


def _runs_of_one_check(pieces: Sequence[Piece], indices: Sequence[int]) -> Iterator[slice]:
    """Yield slices of the indices whose pieces are of one group and dtype, and so are checked alike."""
    first = 0
    for _, run in groupby(indices, key=lambda i: (id(pieces[i].group), pieces[i].grad.dtype)):
        last = first + sum(1 for _ in run)
        yield slice(first, last)
        first = last


def _stays_finite(piece: Piece, grads: Tensor, momenta: Tensor) -> Tensor:
    """Return whether gradients are finite and keep momenta in the range of their dtype, from their largest entries.

    The pieces have the group and the dtype of ``piece``; the result is on their device.
    """
    largest = grads
    if piece.group.get("momentum_form", "heavy_ball") == "heavy_ball":
        # an average cannot leave the range of what it averages; this sum can
        beta = piece.group["momentum"]
        updated = beta * momenta + grads
        largest = grads + beta * updated if piece.group["nesterov"] else updated
    in_range: Tensor = largest <= torch.finfo(piece.grad.dtype).max
    return in_range


def _raise_nonfinite(pieces: Sequence[Piece]) -> None:
    watched = [piece for piece in pieces if piece.group["nonfinite"] == "raise"]
    by_device: dict[torch.device, list[Tensor]] = {}
    for piece in watched:
        by_device.setdefault(piece.grad.device, []).append(cast(Tensor, piece.finite))
    if all(bool(torch.stack(flags).all()) for flags in by_device.values()):
        return
    names = [piece.name for piece in watched if not piece.finite]
    raise ValueError(
        f"gradients must be finite and keep momenta finite (nonfinite='raise'), got NaN or infinity for "
        f"{', '.join(names)}: nothing was updated; lower the learning rate or the loss scale, or pass nonfinite='skip'"
    )


@contextmanager
def restore_skipped(pieces: Sequence[Piece], tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restore the tensors of skipped pieces (``nonfinite="skip"``) on exit, bit for bit and without a host sync."""
    skippable = [(p.finite, t) for p, t in zip(pieces, tensors, strict=True) if p.group["nonfinite"] == "skip"]
    copies = [torch.empty_like(tensor) for _, tensor in skippable]
    if skippable:
        torch._foreach_copy_(copies, [tensor for _, tensor in skippable])
    yield
    for (finite, tensor), copy in zip(skippable, copies, strict=True):
        torch.where(cast(Tensor, finite), tensor, copy, out=tensor)


# -------------------------------------------------------------------------------------------------- stack by shape


def split_blocks(piece: Piece) -> Iterator[Piece]:
    """Split a piece into its blocks; each block is one matrix or one batch of matrices."""
    blocks = param_blocks(piece.param, piece.group["matrix_view"], piece.layout)
    if len(blocks) == 1:
        yield piece._replace(block=blocks[0])
        return
    view, shard = piece.group["matrix_view"], piece.layout.shard
    tensors = (split_tensor(tensor, view, blocks, shard) for tensor in (piece.weight, piece.grad, piece.momentum))
    for i, (block, weight, grad, momentum) in enumerate(zip(blocks, *tensors, strict=True)):
        yield piece._replace(weight=weight, grad=grad, momentum=momentum, block=block, block_index=i)


def stack_by_shape(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """Return stacks of pieces whose matrices have the same shape, dtype, device and orthogonalizer.

    On an accelerator m×n and n×m count as the same shape, wide matrices first; a compiled step keeps them apart.
    """
    stacks: dict[tuple[Any, ...], list[Piece]] = {}
    merged = False
    for piece in pieces:
        block, weight = piece.block, piece.weight
        shape = block.matrices
        if weight.device.type != "cpu" and not torch.compiler.is_compiling():
            shape, merged = (*shape[:-2], *sorted(shape[-2:])), True
        key = (piece.group["orthogonalizer"], shape, block.stays_local, weight.dtype, weight.device)
        stacks.setdefault(key, []).append(piece)
    for stack in stacks.values() if merged else ():
        stack.sort(key=_is_tall)  # stable: runs of one group and shape stay as long as they can be
    return list(stacks.values())


def _is_tall(piece: Piece) -> bool:
    m, n = piece.block.matrices[-2:]
    return m > n


def split_chunks(stacks: Iterable[Sequence[Piece]], layout: Layout) -> Iterator[Sequence[Piece]]:
    """Split stacks into chunks that fit the layout's byte budget; the chunks are the same on every rank."""
    for stack in stacks:
        budget = layout.chunk_bytes(stack[0].weight.device)
        matrix_bytes = math.prod(stack[0].block.shape) * stack[0].weight.element_size()
        size = max(1, budget // matrix_bytes)
        if layout.stacks(stack[0].weight.device):  # equal chunks, so that their buffers have few shapes
            size = -(-len(stack) // -(-len(stack) // size))
        for first in range(0, len(stack), size):
            yield stack[first : first + size]


def stack_for(chunk: Sequence[Piece], layout: Layout, workspaces: Workspaces) -> MatrixStack | None:
    """Return memory for the directions of a chunk as one stack; None where each direction has its own."""
    like = chunk[0].weight
    if not layout.stacks(like.device):
        return None
    return MatrixStack([piece.block.matrices for piece in chunk], like, workspaces)


def by_group(pieces: Iterable[Piece], *, of_one_shape: bool = False) -> Iterator[list[Piece]]:
    """Yield runs of consecutive pieces of the same group, and of the same outputs and inputs if asked."""
    for _, members in groupby(pieces, key=_group_and_shape if of_one_shape else _group):
        yield list(members)


def _group(piece: Piece) -> int:
    return id(piece.group)


def _group_and_shape(piece: Piece) -> tuple[int, tuple[int, int]]:
    return id(piece.group), piece.block.out_in


# -------------------------------------------------------------------------------------------- momentum and weights


def update_momentum(pieces: Sequence[Piece], stack: MatrixStack | None = None) -> list[Tensor]:
    """Update the momenta in place and return the directions (Kim & Oh 2026, Algorithm 1, line 4).

    ``heavy_ball``: ``M ← βM + G``; Nesterov's direction is ``G + βM``. ``ema``: ``M ← βM + (1-β)G``; Nesterov's
    direction is ``(1-β)G + βM``. Without Nesterov the directions are the momenta themselves. Gradients do not change.
    With a stack, the directions are written there, and nothing is allocated.
    """
    slots = None if stack is None else [slot.view(p.weight.shape) for slot, p in zip(stack.slots, pieces, strict=True)]
    directions: list[Tensor] = []
    for members in by_group(pieces):
        group = members[0].group
        momenta, grads = [piece.momentum for piece in members], [piece.grad for piece in members]
        targets = None if slots is None else slots[len(directions) : len(directions) + len(members)]
        beta, heavy_ball = group["momentum"], group.get("momentum_form", "heavy_ball") == "heavy_ball"
        with restore_skipped(members, momenta):
            if heavy_ball:
                torch._foreach_mul_(momenta, beta)
                torch._foreach_add_(momenta, grads)
            else:
                torch._foreach_lerp_(momenta, grads, 1 - beta)
            if group["nesterov"]:
                directions += _look_ahead(grads, momenta, beta, targets, heavy_ball=heavy_ball)
        if not group["nesterov"]:
            directions += momenta if targets is None else _copied(momenta, targets)
    return directions


def _look_ahead(
    grads: list[Tensor], momenta: list[Tensor], beta: float, targets: list[Tensor] | None, *, heavy_ball: bool
) -> list[Tensor]:
    """Return Nesterov's directions, in new memory or in the targets."""
    if targets is None:
        return list(
            torch._foreach_add(grads, momenta, alpha=beta) if heavy_ball else torch._foreach_lerp(grads, momenta, beta)
        )
    targets = _copied(grads, targets)
    if heavy_ball:
        torch._foreach_add_(targets, momenta, alpha=beta)
    else:
        torch._foreach_lerp_(targets, momenta, beta)
    return targets


def _copied(tensors: list[Tensor], targets: list[Tensor]) -> list[Tensor]:
    torch._foreach_copy_(targets, tensors)
    return targets


def update_weights(finished: FinishedBatches) -> None:
    """Update the weights of orthogonalized batches (Kim & Oh 2026, Algorithm 1, line 10).

    In this order: renormalize ``"before"``, decay (which is not scaled), move by ``-lr·scale·O``, renormalize
    ``"after"``.
    """
    for batch, results in finished:
        start = 0
        for pieces in by_group(batch.pieces, of_one_shape=batch.directions[0].device.type != "cpu"):
            group, (outputs, inputs) = pieces[0].group, pieces[0].block.out_in
            # results of later groups are left over
            updates = [O.view(p.weight.shape) for O, p in zip(results[start:], pieces, strict=False)]
            start += len(pieces)
            when = group["renormalize"] if _moves(group) else None
            with restore_skipped(pieces, [piece.weight for piece in pieces]):
                if when == "before":
                    renormalize_weights(pieces, outputs)
                decay_and_move(pieces, updates, scale=SCALES[group["scale"]](outputs, inputs), stack=batch.stack)
                if when == "after":
                    renormalize_weights(pieces, outputs)
        if batch.stack is not None:
            batch.stack.release()


def _moves(group: Mapping[str, Any]) -> bool:
    """Return whether the step may move weights.

    Checkpoint libraries take a step with lr=0 only to create the state; it must not renormalize. A tensor on an
    accelerator is not read and counts as nonzero.
    """
    lr = _scalar(group["lr"])
    return isinstance(lr, Tensor) or lr != 0


def renormalize_weights(pieces: Sequence[Piece], outputs: int) -> None:
    """Rescale each matrix of the weights to the norm ``√outputs`` (the paper's experiments); zero stays zero."""
    norms = pieces[0].layout.weight_norms(pieces)
    for members in _of_one_shape(norms):
        factors = norm_factors(torch.stack([norms[i] for i in members]), outputs)
        for i, factor in zip(members, factors.unbind(), strict=True):
            pieces[i].weight.mul_(factor.to(pieces[i].weight.dtype))


def _of_one_shape(tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Yield the indices of tensors of one shape and dtype."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for i, tensor in enumerate(tensors):
        alike.setdefault((tensor.shape, tensor.dtype), []).append(i)
    yield from alike.values()


def decay_and_move(
    pieces: Sequence[Piece], updates: Sequence[Tensor], *, scale: float, stack: MatrixStack | None = None
) -> None:
    """Decay the weights of one group by ``1 - lr·weight_decay``, then move them by ``-lr·scale`` times the updates.

    Updates that lie in a stack are overwritten where the learning rate is a tensor.
    """
    group = pieces[0].group
    weights = [piece.weight for piece in pieces]
    lr = _scalar(group["lr"])
    factor = scale if group["maximize"] else -scale
    if not isinstance(lr, Tensor):
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        torch._foreach_add_(weights, list(updates), alpha=lr * factor)
        return
    # reading it would sync with the device, or bake it into a compiled step
    lr = lr if lr.device == weights[0].device else lr.to(weights[0].device)
    if group["weight_decay"]:
        torch._foreach_mul_(weights, _times(lr, -group["weight_decay"], stack).add_(1))
    if stack is None:
        torch._foreach_add_(weights, list(torch._foreach_mul(list(updates), lr * factor)))
    else:
        torch._foreach_mul_(list(updates), _times(lr, factor, stack))
        torch._foreach_add_(weights, list(updates))


def _times(lr: Tensor, factor: float, stack: MatrixStack | None) -> Tensor:
    """Return ``lr·factor``, with a stack in memory of its workspace."""
    return lr * factor if stack is None else torch.mul(lr, factor, out=stack.scalar(lr.dtype))


def _scalar(lr: float | Tensor) -> float | Tensor:
    """Return a learning rate as a number if reading it does not wait for a device, else as a 0-dimensional tensor."""
    if not isinstance(lr, Tensor):
        return lr
    if lr.device.type == "cpu" and not torch.compiler.is_compiling():
        return float(lr)
    return lr.reshape(())
