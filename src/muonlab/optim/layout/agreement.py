"""Small messages by which the ranks of a group agree before they act, and raise together rather than wait in vain."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from muonlab.optim.layout.grid import Grid, small_device


def compare(digest: bytes, count: int, grid: Grid) -> None:
    """Refuse, on every rank alike, plans that are not the same on all of them; one small message at each step.

    Args:
        digest: of this rank's plan.
        count: of its blocks, for the message.
        grid: of the ranks.
    """
    number = int.from_bytes(digest[:7])
    extremes = torch.tensor([number, -number], dtype=torch.int64, device=small_device(grid.group))
    counts = torch.tensor([number, count], dtype=torch.int64, device=extremes.device)
    try:
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=grid.group)
        largest, smallest = extremes.tolist()
        if largest == -smallest:
            return
        everyones = [torch.empty_like(counts) for _ in range(grid.ranks)]
        dist.all_gather(everyones, counts, group=grid.group)
    except RuntimeError as error:
        said = (str(error).strip().splitlines() or ["nothing"])[0]
        raise RuntimeError(
            f"every rank must take part in a step, got {said}: a rank has failed, or its optimizer was given no "
            f"parameters; its own output says why"
        ) from error
    plans = [tuple(plan.tolist()) for plan in everyones]
    common = max(plans, key=plans.count)
    others = [f"rank {rank} with {plan[1]}" for rank, plan in enumerate(plans) if plan != common]
    raise ValueError(
        f"every rank must plan the same step, got {', '.join(others)} matrices unlike the other {plans.count(common)} "
        f"with {common[1]}: give every rank the same parameters in the same order, the same options and recorders"
    )


def agreed_flags(flags: Sequence[bool], names: Sequence[str], grid: Grid) -> list[bool]:
    """Return which flags (this parameter has a gradient) are set on any rank.

    A shard without a gradient where others have one counts as zeros. Copies must not differ: each moves its own
    momentum, and they would part for good.
    """
    counts = torch.tensor([int(flag) for flag in flags], dtype=torch.int32, device=small_device(grid.group))
    dist.all_reduce(counts, group=grid.group)
    found: list[int] = counts.tolist()
    apart = [f"{name} on {n}" for name, n in zip(names, found, strict=True) if 0 < n < grid.ranks]
    if apart and grid.shards == 1:
        raise ValueError(
            f"copies must have gradients alike, got one for {', '.join(apart)} of {grid.ranks} ranks: average them "
            f"over the ranks, as DistributedDataParallel does"
        )
    return [n > 0 for n in found]


def largest(values: Tensor, grid: Grid) -> Tensor:
    """Return the largest of each value over all ranks; one that is not a number counts as infinite."""
    found = torch.nan_to_num(values, nan=torch.inf, posinf=torch.inf)  # a maximum may pass over NaN
    dist.all_reduce(found, dist.ReduceOp.MAX, group=grid.group)
    return found


def gathered_text(text: str, grid: Grid) -> list[str]:
    """Return what every rank says, in the order of the ranks."""
    mine = torch.frombuffer(bytearray(text.encode()) or bytearray(1), dtype=torch.uint8).to(small_device(grid.group))
    size = torch.tensor([len(text.encode())], dtype=torch.int64, device=mine.device)
    sizes = [torch.empty_like(size) for _ in range(grid.ranks)]
    dist.all_gather(sizes, size, group=grid.group)
    lengths = [int(one) for one in sizes]
    padded = mine.new_zeros(max(1, *lengths))
    padded[: len(mine)] = mine[: len(padded)]
    everyones = [torch.empty_like(padded) for _ in range(grid.ranks)]
    dist.all_gather(everyones, padded, group=grid.group)
    return [bytes(one[:length].tolist()).decode() for one, length in zip(everyones, lengths, strict=True)]
