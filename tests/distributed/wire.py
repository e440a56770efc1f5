"""What a step sends: every collective of torch.distributed is watched, and the formula says what there should be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from tests.distributed.problems import Matrix

WATCHED = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "broadcast", "broadcast_object_list"),
    *("reduce", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "scatter"),
    *("gather_object", "scatter_object_list", "send", "recv", "isend", "irecv", "batch_isend_irecv", "barrier"),
)


class Wire:
    """While it is open, adds up what this rank sends: bytes of matrices, and elements of everything else.

    Matrices go by all_to_all_single, or by broadcast, which brings every other rank of the group a copy.
    """

    def __init__(self) -> None:
        self.bytes = self.to_self = self.calls = 0
        self.others: list[tuple[str, int]] = []
        self._patches = ExitStack()

    def __enter__(self) -> Wire:
        for name in WATCHED:
            real = getattr(dist, name)
            self._patches.enter_context(mock.patch.object(dist, name, self._watching(name, real)))
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def _watching(self, name: str, real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if name == "all_to_all_single":
                self._count(*arguments, **options)
            elif name == "broadcast":
                self._count_broadcast(*arguments, **options)
            else:
                given = [x for value in (*arguments, *options.values()) for x in _flat(value)]
                self.others.append((name, sum(x.numel() for x in given if isinstance(x, Tensor))))
            return real(*arguments, **options)

        return call

    def _count(
        self, output: Tensor, input: Tensor, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False
    ) -> None:
        del output, output_split_sizes, async_op
        ranks, me = dist.get_world_size(group), dist.get_rank(group)
        sizes = list(input_split_sizes) if input_split_sizes else [len(input) // ranks] * ranks
        row = input.element_size() * math.prod(input.shape[1:])
        assert sum(sizes) == len(input), f"splits {sizes} of a tensor of {len(input)}"
        self.calls += 1
        self.to_self += sizes[me] * row
        self.bytes += (sum(sizes) - sizes[me]) * row

    def _count_broadcast(self, tensor: Tensor, src: int, group=None, async_op=False) -> None:
        del async_op
        self.calls += 1
        self.bytes += tensor.nbytes * (dist.get_world_size(group) - 1) * (src == dist.get_rank())


def _flat(value: Any) -> list[Any]:
    return [x for one in value for x in _flat(one)] if isinstance(value, (list, tuple)) else [value]


# ------------------------------------------------------------------------------------------------------- the formula


def units(matrices: Sequence[Matrix]) -> list[tuple[Matrix, int]]:
    """Return what has an owner each: a matrix, a block of rows, or a stack."""
    return [(one, block) for one in matrices for block in range(len(one.view) if isinstance(one.view, tuple) else 1)]


def pieces(one: Matrix, block: int, shards: int) -> list[int]:
    """Return how many elements of a unit each shard holds, by cutting a tensor of block numbers as DTensor does."""
    rows = one.view if isinstance(one.view, tuple) else (one.shape[0],)
    numbers = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(rows))
    whole = numbers.view(-1, *[1] * (len(one.shape) - 1)).expand(one.shape)
    dim = one.where if isinstance(one.where, int) else 0
    cut = [int((part == block).sum()) for part in whole.chunk(shards, dim)]
    return cut + [0] * (shards - len(cut))


def stays(one: Matrix) -> bool:
    """Tell whether a stack is cut between its matrices along its first dimension, so that nothing has to travel."""
    return one.view == "batch" and one.where == 0


def sent_for(one: Matrix, block: int, owner: int, replicas: int, shards: int) -> list[int]:
    """Return the elements that each rank sends for a unit: pieces to the owner, results to everyone; not to oneself."""
    if stays(one):
        return [0] * (replicas * shards)
    held = pieces(one, block, shards)
    sent = []
    for rank in range(replicas * shards):
        replica, shard = divmod(rank, shards)
        if rank == owner:
            sent.append(replicas * sum(held) - held[shard])
        else:
            sent.append(held[shard] if replica == owner // shards and shards > 1 else 0)
    return sent


def total_for(one: Matrix, block: int, owner: int, replicas: int, shards: int) -> int:
    """Return the documented formula, (mn - c) + (R·mn - c)."""
    if stays(one):
        return 0
    held = pieces(one, block, shards)
    mn, c = sum(held), held[owner % shards]
    return (mn - c) + (replicas * mn - c)
