"""Pieces of blocks sent to their owners and back: one message between each pair of ranks, without padding.

For a block of ``e`` elements held in S shards by R replicas each, with ``c`` of them on its owner: sending to the owner
takes ``e - c`` elements, sending back ``R·e - c``. Replicated parameters (S = 1) send nothing to the owner and
``(N - 1)·e`` back; since every rank then receives the same, the result is broadcast: separate messages would need as
many copies in the owner's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from muonlab.optim.distributed.grid import RankGrid
from muonlab.optim.views import MatrixBlock


class OwnedBlock(NamedTuple):
    """A block and the rank of the group that orthogonalizes it."""

    block: MatrixBlock
    owner: int


class Transfer(NamedTuple):
    """The elements of one block that this rank sends to another rank, or receives from it."""

    rank: int
    block_index: int
    elements: int


class Transfers(NamedTuple):
    """All that a rank sends and receives in one exchange, sorted by rank and then by block."""

    send: list[Transfer]
    receive: list[Transfer]


Route = Callable[[Sequence[OwnedBlock], RankGrid], Transfers]


def to_owners(blocks: Sequence[OwnedBlock], grid: RankGrid) -> Transfers:
    """Return the transfers of pieces to the owner, from the ranks of its replica."""
    rank, replica = grid.rank, grid.replica[grid.rank]
    send = [
        Transfer(owner, i, block.piece_elements(grid.shard[rank]))
        for i, (block, owner) in enumerate(blocks)
        if owner != rank and grid.replica[owner] == replica
    ]
    neighbours = [other for other in range(grid.size) if other != rank and grid.replica[other] == replica]
    receive = [
        Transfer(other, i, block.piece_elements(grid.shard[other]))
        for i, (block, owner) in enumerate(blocks)
        if owner == rank
        for other in neighbours
    ]
    return _transfers(blocks, send, receive)


def from_owners(blocks: Sequence[OwnedBlock], grid: RankGrid) -> Transfers:
    """Return the transfers of results from the owner, to every rank its piece."""
    rank = grid.rank
    send = [
        Transfer(other, i, block.piece_elements(grid.shard[other]))
        for i, (block, owner) in enumerate(blocks)
        if owner == rank
        for other in range(grid.size)
        if other != rank
    ]
    receive = [
        Transfer(owner, i, block.piece_elements(grid.shard[rank]))
        for i, (block, owner) in enumerate(blocks)
        if owner != rank
    ]
    return _transfers(blocks, send, receive)


def _transfers(blocks: Sequence[OwnedBlock], *ways: list[Transfer]) -> Transfers:
    """Return sorted transfers without empty ones and without blocks that stay local."""
    return Transfers(
        *(sorted(t for t in way if t.elements and not blocks[t.block_index].block.stays_local) for way in ways)
    )


def elements_sent(owned: OwnedBlock, grid: RankGrid) -> int:
    """Return the elements that all ranks together send for a block, to its owner and back: the formula above.

    Example:
        >>> elements_sent(OwnedBlock(MatrixBlock((4, 3), (4, 3), 0, (2, 2)), 0), RankGrid.simulated(1, 2))
        12
        >>> elements_sent(OwnedBlock(MatrixBlock((4, 3), (4, 3), 0, (4,)), 0), RankGrid.simulated(4, 1))
        36
    """
    if owned.block.stays_local:
        return 0
    total = sum(owned.block.piece_elements(shard) for shard in range(grid.shards))
    on_owner = owned.block.piece_elements(grid.shard[owned.owner])
    return (total - on_owner) + (grid.replicas * total - on_owner)


class AllToAll:
    """An asynchronous exchange of pieces by ``all_to_all_single``.

    Args:
        route: :func:`to_owners` or :func:`from_owners`.
        blocks: the blocks, in the same order on every rank.
        grid: the ranks.
        outgoing: returns what to send, by index of the block and receiving rank.
        like: a tensor with the device and dtype of the messages.
    """

    def __init__(
        self,
        route: Route,
        blocks: Sequence[OwnedBlock],
        grid: RankGrid,
        outgoing: Callable[[int, int], Tensor],
        like: Tensor,
    ) -> None:
        transfers = route(blocks, grid)
        self._receive = transfers.receive
        pieces = [outgoing(t.block_index, t.rank).reshape(-1).to(like.dtype) for t in transfers.send]
        # both buffers must stay alive until the exchange is complete
        self._sent = torch.cat(pieces) if pieces else like.new_empty(0)
        self._received = like.new_empty(sum(t.elements for t in transfers.receive))
        sizes = (_elements_by_rank(transfers.receive, grid.size), _elements_by_rank(transfers.send, grid.size))
        self._work: Any = dist.all_to_all_single(self._received, self._sent, *sizes, group=grid.group, async_op=True)

    def wait(self) -> dict[tuple[int, int], Tensor]:
        """Wait for the exchange; return the received pieces, flat, by index of the block and sending rank."""
        self._work.wait()
        del self._sent
        pieces = torch.split(self._received, [t.elements for t in self._receive])
        return {(t.block_index, t.rank): piece for t, piece in zip(self._receive, pieces, strict=True)}


class Broadcasts:
    """Asynchronous broadcasts of whole blocks from their owners to all other ranks.

    Args:
        blocks: the blocks, in the same order on every rank.
        grid: the ranks, each of which holds a replica.
        results: the blocks that this rank owns, by index.
        like: a tensor with the device and dtype of the messages.
    """

    def __init__(
        self, blocks: Sequence[OwnedBlock], grid: RankGrid, results: Mapping[int, Tensor], like: Tensor
    ) -> None:
        self._messages: list[tuple[int, list[Transfer], Tensor, Any]] = []
        for owner in sorted({owned.owner for owned in blocks}):
            transfers = [
                Transfer(owner, i, owned.block.piece_elements(0))
                for i, owned in enumerate(blocks)
                if owned.owner == owner
            ]
            if owner == grid.rank:
                buffer = torch.cat([results[t.block_index].reshape(-1).to(like.dtype) for t in transfers])
            else:
                buffer = like.new_empty(sum(t.elements for t in transfers))
            work = dist.broadcast(buffer, grid.global_rank(owner), group=grid.group, async_op=True)
            self._messages.append((owner, transfers, buffer, work))

    def wait(self) -> dict[tuple[int, int], Tensor]:
        """Wait for the broadcasts; return the received blocks, flat, by index of the block and owner."""
        received = {}
        for owner, transfers, buffer, work in self._messages:
            work.wait()
            pieces = torch.split(buffer, [t.elements for t in transfers])
            received.update({(t.block_index, owner): piece for t, piece in zip(transfers, pieces, strict=True)})
        self._messages.clear()
        return received


def _elements_by_rank(transfers: Sequence[Transfer], ranks: int) -> list[int]:
    sizes = [0] * ranks
    for transfer in transfers:
        sizes[transfer.rank] += transfer.elements
    return sizes
