"""Small messages by which the ranks of a group agree before they act, and raise together rather than wait in vain."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from muonlab.optim.layout.grid import Grid, small_device


def agreed_flags(
    flags: Sequence[bool], names: Sequence[str], plan: bytes, count: int, grid: Grid, *, copies: bool = True
) -> list[bool]:
    """Return which flags (this parameter has a gradient) are set on any rank, once all plan the same step.

    One message of four numbers at each step, the same size whatever is wrong; more only where ranks differ. A shard
    without a gradient where others have one counts as zeros. Copies must not differ: each moves its own momentum, and
    they would part for good.

    Args:
        flags: of this rank.
        names: of the parameters.
        plan: a hash of what this rank is going to do.
        count: of the matrices in it, for the message.
        grid: of the ranks.
        copies: whether ranks of one shard hold the same; where not, none is refused for lacking a gradient.
    """
    device = small_device(grid.group)
    said = [int.from_bytes(hashed[:7]) for hashed in (plan, hashlib.sha256(bytes(flags)).digest())]
    extremes = torch.tensor([*said, *(-number for number in said)], dtype=torch.int64, device=device)
    try:
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=grid.group)
        most_plan, most_flags, least_plan, least_flags = extremes.tolist()
        if most_plan != -least_plan:
            _refuse_plans(_everyones([said[0], count], device, grid), grid)
    except RuntimeError as error:
        got = (str(error).strip().splitlines() or ["nothing"])[0]
        raise RuntimeError(
            f"every rank must take part in a step, got {got}: a rank has failed, or its optimizer was given no "
            f"parameters; its own output says why"
        ) from error
    if most_flags == -least_flags:
        return list(flags)
    everyones = _everyones([int(flag) for flag in flags], device, grid)
    if copies:
        _refuse_copies(everyones, names, grid)
    return [any(ranks) for ranks in zip(*everyones, strict=True)]


def _everyones(numbers: list[int], device: torch.device, grid: Grid) -> list[list[int]]:
    """Return the numbers of every rank."""
    mine = torch.tensor(numbers, dtype=torch.int64, device=device)
    found = [torch.empty_like(mine) for _ in range(grid.ranks)]
    dist.all_gather(found, mine, group=grid.group)
    lists: list[list[int]] = torch.stack(found).tolist()
    return lists


def _refuse_plans(plans: list[list[int]], grid: Grid) -> None:
    common = max(plans, key=plans.count)
    others = [f"rank {grid.name(rank)} with {plan[1]}" for rank, plan in enumerate(plans) if plan != common]
    raise ValueError(
        f"every rank must plan the same step, got {', '.join(others)} matrices unlike the other {plans.count(common)} "
        f"with {common[1]}: give every rank the same parameters in the same order, the same options, learning rates "
        f"and recorders"
    )


def _refuse_copies(everyones: list[list[int]], names: Sequence[str], grid: Grid) -> None:
    """Refuse gradients that some ranks of a shard have and others not."""
    apart = []
    for name, present in zip(names, zip(*everyones, strict=True), strict=True):
        by_shard: dict[int, set[int]] = {}
        for rank, has in enumerate(present):
            by_shard.setdefault(grid.shard[rank], set()).add(has)
        if any(len(kinds) > 1 for kinds in by_shard.values()):
            apart.append(f"{name} on {sum(present)}")
    if apart:
        raise ValueError(
            f"copies must have gradients alike, got one for {', '.join(apart)} of {grid.ranks} ranks: average them "
            f"over the ranks, as DistributedDataParallel does"
        )


def largest(values: Tensor, grid: Grid) -> Tensor:
    """Return the largest of each value over all ranks; one that is not a number counts as infinite."""
    found = torch.nan_to_num(values, nan=torch.inf, posinf=torch.inf)  # a maximum may pass over NaN
    dist.all_reduce(found, dist.ReduceOp.MAX, group=grid.group)
    return found


def gathered_text(text: str, grid: Grid) -> list[str]:
    """Return what every rank says, in the order of the ranks."""
    device, said = small_device(grid.group), bytearray(text.encode())
    lengths = [length for (length,) in _everyones([len(said)], device, grid)]
    padded = torch.zeros(max(1, *lengths), dtype=torch.uint8)
    if said:
        padded[: len(said)] = torch.frombuffer(said, dtype=torch.uint8)
    padded = padded.to(device)
    found = [torch.empty_like(padded) for _ in range(grid.ranks)]
    dist.all_gather(found, padded, group=grid.group)
    everyones = torch.stack(found).cpu().numpy()
    return [bytes(row[:length]).decode() for row, length in zip(everyones, lengths, strict=True)]
