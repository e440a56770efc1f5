"""Pieces of blocks to their owners and back: one message from each rank to each, of its true size.

For a block of ``e`` elements that S shards hold, on R replicas each, with ``c`` of them on its owner: the way to the
owner sends ``e - c`` elements, the way back ``R·e - c``. Copies are one shard: nothing, and ``(N - 1)·e``; what
comes back is then the same for all, and broadcast: a message for each would be as many copies in the owner's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from muonlab.optim.layout.blocks import Block
from muonlab.optim.layout.grid import Grid


class Item(NamedTuple):
    """A block, and the rank of the group that orthogonalizes it."""

    block: Block
    owner: int


class Leg(NamedTuple):
    """What one rank sends another, or gets from it, of the item of a number."""

    rank: int
    item: int
    elements: int


class Legs(NamedTuple):
    """All that a rank sends and gets in one exchange, each by rank and then by item."""

    out: list[Leg]
    back: list[Leg]


Route = Callable[[Sequence[Item], Grid], Legs]


def to_owners(items: Sequence[Item], grid: Grid) -> Legs:
    """Route the pieces of a replica to the owner in it."""
    me, mine = grid.me, grid.replica[grid.me]
    out = [
        Leg(owner, i, block.elements(grid.shard[me]))
        for i, (block, owner) in enumerate(items)
        if owner != me and grid.replica[owner] == mine
    ]
    near = [a for a in range(grid.ranks) if a != me and grid.replica[a] == mine]
    back = [
        Leg(a, i, block.elements(grid.shard[a])) for i, (block, owner) in enumerate(items) if owner == me for a in near
    ]
    return _legs(items, out, back)


def from_owners(items: Sequence[Item], grid: Grid) -> Legs:
    """Route to every rank its piece of what the owner made."""
    me = grid.me
    out = [
        Leg(b, i, block.elements(grid.shard[b]))
        for i, (block, owner) in enumerate(items)
        if owner == me
        for b in range(grid.ranks)
        if b != me
    ]
    back = [Leg(owner, i, block.elements(grid.shard[me])) for i, (block, owner) in enumerate(items) if owner != me]
    return _legs(items, out, back)


def _legs(items: Sequence[Item], *ways: list[Leg]) -> Legs:
    return Legs(*(sorted(leg for leg in way if leg.elements and not items[leg.item].block.stays) for way in ways))


def elements_sent(item: Item, grid: Grid) -> int:
    """Return the elements that all ranks together send for an item, to its owner and back: the formula above.

    Example:
        >>> elements_sent(Item(Block((4, 3), (4, 3), 0, (2, 2)), 0), Grid.of(1, 2))
        12
        >>> elements_sent(Item(Block((4, 3), (4, 3), 0, (4,)), 0), Grid.of(4, 1))
        36
    """
    if item.block.stays:
        return 0
    whole = sum(item.block.elements(shard) for shard in range(grid.shards))
    own = item.block.elements(grid.shard[item.owner])
    return (whole - own) + (grid.replicas * whole - own)


class Flight:
    """Messages on their way.

    Args:
        route: to owners, or from them.
        items: in the same order on every rank.
        grid: of the ranks.
        outgoing: gives what a rank is to have of an item, by the number of the item and the rank.
        like: a tensor of the device and dtype that are sent.
    """

    def __init__(
        self,
        route: Route,
        items: Sequence[Item],
        grid: Grid,
        outgoing: Callable[[int, int], Tensor],
        like: Tensor,
    ) -> None:
        legs = route(items, grid)
        self._back = legs.back
        pieces = [outgoing(leg.item, leg.rank).reshape(-1).to(like.dtype) for leg in legs.out]
        # kept until they have landed: the network reads the one and writes the other
        self._sent = torch.cat(pieces) if pieces else like.new_empty(0)
        self._came = like.new_empty(sum(leg.elements for leg in legs.back))
        split = (_by_rank(legs.back, grid.ranks), _by_rank(legs.out, grid.ranks))
        self._work: Any = dist.all_to_all_single(self._came, self._sent, *split, group=grid.group, async_op=True)

    def land(self) -> dict[tuple[int, int], Tensor]:
        """Wait; return what came by item and sender, flat."""
        self._work.wait()
        del self._sent
        parts = torch.split(self._came, [leg.elements for leg in self._back])
        return {(leg.item, leg.rank): part for leg, part in zip(self._back, parts, strict=True)}


class Broadcasts:
    """Whole blocks on their way from their owners to everyone else.

    Args:
        items: in the same order on every rank.
        grid: of the ranks, each of which has a copy.
        wholes: the blocks that this rank owns, by number.
        like: a tensor of the device and dtype that are sent.
    """

    def __init__(self, items: Sequence[Item], grid: Grid, wholes: Mapping[int, Tensor], like: Tensor) -> None:
        self._flights: list[tuple[int, list[Leg], Tensor, Any]] = []
        for owner in sorted({item.owner for item in items}):
            legs = [Leg(owner, i, item.block.elements(0)) for i, item in enumerate(items) if item.owner == owner]
            if owner == grid.me:
                buffer = torch.cat([wholes[leg.item].reshape(-1).to(like.dtype) for leg in legs])
            else:
                buffer = like.new_empty(sum(leg.elements for leg in legs))
            work = dist.broadcast(buffer, grid.name(owner), group=grid.group, async_op=True)
            self._flights.append((owner, legs, buffer, work))

    def land(self) -> dict[tuple[int, int], Tensor]:
        """Wait; return what came by item and owner, flat."""
        found = {}
        for owner, legs, buffer, work in self._flights:
            work.wait()
            parts = torch.split(buffer, [leg.elements for leg in legs])
            found.update({(leg.item, owner): part for leg, part in zip(legs, parts, strict=True)})
        self._flights.clear()
        return found


def _by_rank(legs: Sequence[Leg], ranks: int) -> list[int]:
    sizes = [0] * ranks
    for leg in legs:
        sizes[leg.rank] += leg.elements
    return sizes
