"""Small messages by which the ranks of a group agree before a step; if they do not, all of them raise."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist

from muonlab.optim.distributed.grid import RankGrid, small_message_device


def agreed_flags(
    flags: Sequence[bool], names: Sequence[str], plan_hash: bytes, matrix_count: int, grid: RankGrid
) -> list[bool]:
    """Return which flags (this parameter has a gradient) are set on any rank; raise if ranks plan different steps.

    One message of four numbers at each step; more only where ranks differ. A shard without a gradient where other
    shards have one counts as zeros. Replicas must not differ: each updates its own momentum, and they would diverge.

    Args:
        flags: flags of this rank.
        names: names of the parameters.
        plan_hash: hash of what this rank is going to do.
        matrix_count: number of matrices in the plan, for the message.
        grid: the ranks.
    """
    device = small_message_device(grid.group)
    numbers = [int.from_bytes(hashed[:7]) for hashed in (plan_hash, hashlib.sha256(bytes(flags)).digest())]
    extremes = torch.tensor([*numbers, *(-number for number in numbers)], dtype=torch.int64, device=device)
    try:
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=grid.group)
        max_plan, max_flags, negative_min_plan, negative_min_flags = extremes.tolist()
        if max_plan != -negative_min_plan:
            _raise_different_plans(_gather_numbers([numbers[0], matrix_count], device, grid), grid)
    except RuntimeError as error:
        cause = (str(error).strip().splitlines() or ["nothing"])[0]
        raise RuntimeError(
            f"every rank must take part in a step, got {cause}: a rank has failed, or its optimizer was given no "
            f"parameters; its own output says why"
        ) from error
    if max_flags == -negative_min_flags:
        return list(flags)
    all_flags = _gather_numbers([int(flag) for flag in flags], device, grid)
    _raise_different_replicas(all_flags, names, grid)
    return [any(ranks) for ranks in zip(*all_flags, strict=True)]


def _gather_numbers(numbers: list[int], device: torch.device, grid: RankGrid) -> list[list[int]]:
    """Return the numbers of every rank."""
    own = torch.tensor(numbers, dtype=torch.int64, device=device)
    gathered = [torch.empty_like(own) for _ in range(grid.size)]
    dist.all_gather(gathered, own, group=grid.group)
    lists: list[list[int]] = torch.stack(gathered).tolist()
    return lists


def _raise_different_plans(plans: list[list[int]], grid: RankGrid) -> None:
    common = max(plans, key=plans.count)
    others = [f"rank {grid.global_rank(rank)} with {plan[1]}" for rank, plan in enumerate(plans) if plan != common]
    raise ValueError(
        f"every rank must plan the same step, got {', '.join(others)} matrices unlike the other {plans.count(common)} "
        f"with {common[1]}: give every rank the same parameters in the same order, the same options, learning rates "
        f"and recorders"
    )


def _raise_different_replicas(all_flags: list[list[int]], names: Sequence[str], grid: RankGrid) -> None:
    """Raise if some replicas of a shard have a gradient and others do not."""
    different = []
    for name, present in zip(names, zip(*all_flags, strict=True), strict=True):
        by_shard: dict[int, set[int]] = {}
        for rank, has_gradient in enumerate(present):
            by_shard.setdefault(grid.shard[rank], set()).add(has_gradient)
        if any(len(flags) > 1 for flags in by_shard.values()):
            different.append(f"{name} on {sum(present)}")
    if different:
        raise ValueError(
            f"replicas must have the same gradients, got one for {', '.join(different)} of {grid.size} ranks: average "
            f"them over the ranks, as DistributedDataParallel does"
        )


def gathered_text(text: str, grid: RankGrid) -> list[str]:
    """Return the text of every rank, in the order of the ranks."""
    device, encoded = small_message_device(grid.group), bytearray(text.encode())
    lengths = [length for (length,) in _gather_numbers([len(encoded)], device, grid)]
    padded = torch.zeros(max(1, *lengths), dtype=torch.uint8)
    if encoded:
        padded[: len(encoded)] = torch.frombuffer(encoded, dtype=torch.uint8)
    padded = padded.to(device)
    gathered = [torch.empty_like(padded) for _ in range(grid.size)]
    dist.all_gather(gathered, padded, group=grid.group)
    rows = torch.stack(gathered).cpu().numpy()
    return [bytes(row[:length]).decode() for row, length in zip(rows, lengths, strict=True)]
