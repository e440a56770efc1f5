"""What a step of many ranks would take on hardware that is assumed: the plan and every message played through."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from muonlab import _checks
from muonlab.optim.layout.blocks import Block
from muonlab.optim.layout.distributed import BUCKET, MOST
from muonlab.optim.layout.exchange import Item, Leg, Legs, elements_sent, from_owners, to_owners
from muonlab.optim.layout.grid import Grid
from muonlab.optim.layout.plan import assign


@dataclass(frozen=True)
class Hardware:
    """Three numbers of each rank; nothing here measures them.

    Args:
        operations: per second, in the products of the orthogonalization.
        bandwidth: bytes per second of its link, each way.
        latency: seconds that a message takes beside its bytes.
    """

    operations: float
    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        _checks.positive("operations", self.operations)
        _checks.positive("bandwidth", self.bandwidth)
        _checks.non_negative("latency", self.latency)


@dataclass(frozen=True)
class Projection:
    """A step's orthogonalizations over ranks, projected.

    Momentum, decay and update are left out, and so are the few numbers by which ranks agree: both are the same in every
    layout, or next to nothing.

    Args:
        replicas: ranks that hold the same piece.
        shards: pieces of a parameter.
        hardware: assumed.
        element: bytes of one, as it is sent.
        balance: operations of the busiest rank over their mean.
        operations: of the busiest rank.
        all_operations: of a rank that does everything itself.
        sent: elements that all ranks send, by the formula.
        simulated: the same, added up message by message.
        most_sent: elements that the busiest rank sends.
        most_received: elements that the busiest rank gets.
        most_messages: that a rank sends, or gets.
    """

    replicas: int
    shards: int
    hardware: Hardware
    element: int
    balance: float
    operations: float
    all_operations: float
    sent: int
    simulated: int
    most_sent: int
    most_received: int
    most_messages: int

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.replicas * self.shards

    @property
    def compute(self) -> float:
        """Seconds that the busiest rank orthogonalizes."""
        return self.operations / self.hardware.operations

    @property
    def communication(self) -> float:
        """Seconds that the busiest link is used: both ways at once, without a pause between messages."""
        most = max(self.most_sent, self.most_received) * self.element
        return most / self.hardware.bandwidth + self.most_messages * self.hardware.latency

    @property
    def apart(self) -> float:
        """Seconds of a step that first sends and then works."""
        return self.compute + self.communication

    @property
    def overlapped(self) -> float:
        """Seconds of a step that hides all of the shorter behind the longer: no overlap does better."""
        return max(self.compute, self.communication)

    @property
    def everyone(self) -> float:
        """Seconds where every rank has whole gradients and does everything itself: nothing is sent."""
        return self.all_operations / self.hardware.operations


def project(
    blocks: Sequence[Block],
    costs: Sequence[float],
    grid: Grid,
    hardware: Hardware,
    *,
    element: int = 4,
    bucket: int = BUCKET,
) -> Projection:
    """Share out blocks as a step would, and play through all that its ranks send each other.

    How a broadcast travels is up to the backend; here ranks pass it on along a binomial tree.

    Args:
        blocks: in the order of the parameters, cut into the shards of ``grid``.
        costs: operations of each.
        grid: of ranks; it needs no processes.
        hardware: assumed.
        element: bytes of one, held and sent.
        bucket: bytes of whole matrices that travel together, for each rank.

    Example:
        >>> from muonlab.optim.layout.blocks import cut
        >>> of = project(cut((4, 6), "flatten", shards=2), [1e3], Grid.of(1, 2), Hardware(1e6, 1e6, 0.0))
        >>> of.sent, of.simulated, of.compute
        (24, 24, 0.001)
    """
    _check(blocks, costs, grid)
    owners = assign([0.0 if block.stays else cost for block, cost in zip(blocks, costs, strict=True)], grid.ranks)
    items = [Item(block, owner) for block, owner in zip(blocks, owners, strict=True)]
    loads = _loads(items, costs, grid)
    sent, received, messages = _played_through(items, grid, element, min(bucket * grid.ranks, MOST))
    mean = sum(loads) / grid.ranks
    return Projection(
        replicas=grid.replicas,
        shards=grid.shards,
        hardware=hardware,
        element=element,
        balance=max(loads) / mean if mean else 1.0,
        operations=max(loads),
        all_operations=float(sum(costs)),
        sent=sum(elements_sent(item, grid) for item in items),
        simulated=sum(sent),
        most_sent=max(sent),
        most_received=max(received),
        most_messages=max(messages),
    )


def _check(blocks: Sequence[Block], costs: Sequence[float], grid: Grid) -> None:
    if len(blocks) != len(costs):
        raise ValueError(f"each block must have a cost, got {len(costs)} for {len(blocks)}: give one for each")
    for block in blocks:
        if len(block.sizes) != grid.shards:
            raise ValueError(
                f"blocks must be cut into the {grid.shards} shards of the grid, got {len(block.sizes)} pieces of "
                f"{block.shape}: pass shards={grid.shards} to cut"
            )


def _loads(items: Sequence[Item], costs: Sequence[float], grid: Grid) -> list[float]:
    """Return the operations of each rank: what it owns, and its own pieces of stacks that stay where they are."""
    loads = [0.0] * grid.ranks
    for (block, owner), cost in zip(items, costs, strict=True):
        if not block.stays:
            loads[owner] += cost
            continue
        for rank, shard in enumerate(grid.shard):
            loads[rank] += cost * block.sizes[shard] / block.shape[0]
    return loads


def _played_through(items: Sequence[Item], grid: Grid, element: int, room: int) -> tuple[list[int], ...]:
    """Return the elements that each rank sends, those that it gets, and the messages of the busier way."""
    sent, received, messages = ([0] * grid.ranks for _ in range(3))
    for bucket in buckets(items, element, room):
        for legs in _broadcasts(bucket, grid) if grid.shards == 1 else _exchanges(bucket, grid):
            for me, (out, back) in enumerate(legs):
                sent[me] += sum(leg.elements for leg in out)
                received[me] += sum(leg.elements for leg in back)
                messages[me] += max(len({leg.rank for leg in way}) for way in (out, back))
    return sent, received, messages


def _exchanges(bucket: Sequence[Item], grid: Grid) -> Iterator[list[Legs]]:
    """Yield what each rank sends and gets on the way to the owners, and on the way back."""
    for route in (to_owners, from_owners):
        yield [route(bucket, Grid(grid.replica, grid.shard, me)) for me in range(grid.ranks)]


def _broadcasts(bucket: Sequence[Item], grid: Grid) -> Iterator[list[Legs]]:
    """Yield what each rank sends and gets in the broadcast of each owner, passed on along a binomial tree."""
    for owner in sorted({item.owner for item in bucket}):
        elements = sum(item.block.elements(0) for item in bucket if item.owner == owner)
        legs = [Legs([], []) for _ in range(grid.ranks)]
        for number in range(1, grid.ranks):
            earlier = number - (1 << number.bit_length() - 1)  # who has it when this one's turn comes
            giver, taker = (owner + earlier) % grid.ranks, (owner + number) % grid.ranks
            legs[giver].out.append(Leg(taker, 0, elements))
            legs[taker].back.append(Leg(giver, 0, elements))
        yield legs


def buckets(items: Sequence[Item], element: int, room: int) -> Iterator[list[Item]]:
    """Yield items that travel together: those of one shape by as many as fit, then such batches up to the same bytes.

    Args:
        items: in the order of the parameters, treated alike.
        element: bytes of one.
        room: bytes of whole matrices in a bucket.
    """
    alike: dict[tuple[object, ...], list[Item]] = {}
    for item in items:
        alike.setdefault((item.block.matrices, item.block.stays), []).append(item)
    bucket: list[Item] = []
    filled = 0
    for stack in alike.values():
        each = math.prod(stack[0].block.shape) * element
        size = max(1, room // each)
        for first in range(0, len(stack), size):
            batch = stack[first : first + size]
            if bucket and filled + each * len(batch) > room:
                yield bucket
                bucket, filled = [], 0
            bucket = bucket + batch
            filled += each * len(batch)
    if bucket:
        yield bucket
