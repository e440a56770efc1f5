"""What the orthogonalizations of a step would take on up to 1,024 ranks: a projection, not a measurement. Prints JSON.

Matrices are those of the paper's two GPTs, on the meta device. Costs, owners and messages are those of the optimizer,
simulated without processes. Three numbers of the hardware are assumed: round figures of the order of a data centre's
accelerator and its network. They were not measured, and one link speed is used for all distances.

    python benchmarks/projection.py                  # half a minute
    python benchmarks/projection.py --operations 4e14 --bandwidth 5e10 --latency 5e-6
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from muonlab import Muon, split_params
from muonlab.lab.models import build
from muonlab.optim.distributed.exchange import OwnedBlock, Transfer, Transfers, elements_sent, from_owners, to_owners
from muonlab.optim.distributed.grid import RankGrid
from muonlab.optim.distributed.layout import BUCKET_BYTES_PER_RANK, MAX_BUCKET_BYTES
from muonlab.optim.distributed.plan import assign_owners, block_cost
from muonlab.optim.views import MatrixBlock, matrix_blocks


@dataclass(frozen=True)
class Hardware:
    """Assumed numbers of each rank.

    Args:
        operations: operations per second in the products of the orthogonalization.
        bandwidth: bytes per second of its link, each way.
        latency: seconds per message in addition to its bytes.
    """

    operations: float
    bandwidth: float
    latency: float


MODELS, RANKS, NODE = ("gpt-124m", "gpt-1.3b"), (1, 8, 64, 1024), 8
HARDWARE = Hardware(operations=1e14, bandwidth=2.5e10, latency=1e-5)
ELEMENT = 4
"""Bytes of float32, in which matrices are held and sent."""
METHODS = {
    "paper, q=3, kappa=2": lambda groups: Muon.paper(groups, lr=0.02, momentum=0.95, q=3, kappa=2),
    "default": lambda groups: Muon(groups, lr=0.02),
}


@dataclass(frozen=True)
class Projection:
    """The projected orthogonalizations of a step.

    Momentum, decay, update and the few numbers by which ranks agree are left out: they are the same in every layout, or
    negligible.

    Args:
        replicas: ranks that hold the same piece.
        shards: pieces of a parameter.
        hardware: assumed numbers.
        element: bytes of a sent element.
        balance: operations of the busiest rank divided by their mean.
        operations: operations of the busiest rank.
        all_operations: operations of a rank that orthogonalizes everything.
        sent: elements that all ranks send, by the formula.
        simulated: the same, summed message by message.
        max_sent: elements that the busiest rank sends.
        max_received: elements that the busiest rank receives.
        max_messages: messages that the busiest rank sends or receives.
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
    max_sent: int
    max_received: int
    max_messages: int

    @property
    def compute(self) -> float:
        """Seconds that the busiest rank orthogonalizes."""
        return self.operations / self.hardware.operations

    @property
    def communication(self) -> float:
        """Seconds that the busiest link is used: both ways at once, without gaps between messages."""
        elements = max(self.max_sent, self.max_received)
        return elements * self.element / self.hardware.bandwidth + self.max_messages * self.hardware.latency

    @property
    def sequential(self) -> float:
        """Seconds of a step without overlap."""
        return self.compute + self.communication

    @property
    def overlapped(self) -> float:
        """Seconds of a step with perfect overlap."""
        return max(self.compute, self.communication)

    @property
    def redundant(self) -> float:
        """Seconds where every rank has whole gradients and orthogonalizes everything: nothing is sent."""
        return self.all_operations / self.hardware.operations


def project(
    blocks: Sequence[MatrixBlock],
    costs: Sequence[float],
    grid: RankGrid,
    hardware: Hardware,
    *,
    element: int = ELEMENT,
    bucket: int = BUCKET_BYTES_PER_RANK,
) -> Projection:
    """Assign owners as a step does, and simulate all messages between its ranks.

    How a broadcast is routed depends on the backend; here ranks forward it along a binomial tree.

    Args:
        blocks: in the order of the parameters, cut into the shards of ``grid``.
        costs: operations of each block.
        grid: a simulated grid.
        hardware: assumed numbers.
        element: bytes of an element.
        bucket: bytes of whole matrices that are sent together, for each rank.
    """
    owners = assign_owners([0.0 if b.stays_local else cost for b, cost in zip(blocks, costs, strict=True)], grid.size)
    owned = [OwnedBlock(block, owner) for block, owner in zip(blocks, owners, strict=True)]
    loads = loads_of(owned, costs, grid)
    sent, received, messages = simulate(owned, grid, element, min(bucket * grid.size, MAX_BUCKET_BYTES))
    return Projection(
        replicas=grid.replicas,
        shards=grid.shards,
        hardware=hardware,
        element=element,
        balance=max(loads) * grid.size / sum(loads) if sum(loads) else 1.0,
        operations=max(loads),
        all_operations=float(sum(costs)),
        sent=sum(elements_sent(block, grid) for block in owned),
        simulated=sum(sent),
        max_sent=max(sent),
        max_received=max(received),
        max_messages=max(messages),
    )


def loads_of(owned: Sequence[OwnedBlock], costs: Sequence[float], grid: RankGrid) -> list[float]:
    """Return the operations of each rank: the blocks it owns, and its own part of stacks that stay local."""
    loads = [0.0] * grid.size
    for (block, owner), cost in zip(owned, costs, strict=True):
        if not block.stays_local:
            loads[owner] += cost
            continue
        for rank, shard in enumerate(grid.shard):
            loads[rank] += cost * block.sizes[shard] / block.shape[0]
    return loads


def simulate(owned: Sequence[OwnedBlock], grid: RankGrid, element: int, budget: int) -> tuple[list[int], ...]:
    """Return, for each rank, the elements it sends, those it receives, and the messages of the busier way."""
    sent, received, messages = ([0] * grid.size for _ in range(3))
    for bucket in buckets(owned, element, budget):
        for transfers in broadcasts(bucket, grid) if grid.shards == 1 else exchanges(bucket, grid):
            for rank, (send, receive) in enumerate(transfers):
                sent[rank] += sum(transfer.elements for transfer in send)
                received[rank] += sum(transfer.elements for transfer in receive)
                messages[rank] += max(len({transfer.rank for transfer in way}) for way in (send, receive))
    return sent, received, messages


def exchanges(bucket: Sequence[OwnedBlock], grid: RankGrid) -> Iterator[list[Transfers]]:
    """Yield the transfers of each rank to the owners, and back."""
    for route in (to_owners, from_owners):
        yield [route(bucket, RankGrid(grid.replica, grid.shard, rank)) for rank in range(grid.size)]


def broadcasts(bucket: Sequence[OwnedBlock], grid: RankGrid) -> Iterator[list[Transfers]]:
    """Yield the transfers of each rank in the broadcast of each owner, along a binomial tree."""
    for owner in sorted({block.owner for block in bucket}):
        elements = sum(block.block.piece_elements(0) for block in bucket if block.owner == owner)
        transfers = [Transfers([], []) for _ in range(grid.size)]
        for number in range(1, grid.size):
            parent = number - (1 << number.bit_length() - 1)
            sender, receiver = (owner + parent) % grid.size, (owner + number) % grid.size
            transfers[sender].send.append(Transfer(receiver, 0, elements))
            transfers[receiver].receive.append(Transfer(sender, 0, elements))
        yield transfers


def buckets(owned: Sequence[OwnedBlock], element: int, budget: int) -> Iterator[list[OwnedBlock]]:
    """Yield blocks that are sent together: chunks of one shape that fit the budget, then such chunks up to it."""
    stacks: dict[tuple[object, ...], list[OwnedBlock]] = {}
    for block in owned:
        stacks.setdefault((block.block.matrices, block.block.stays_local), []).append(block)
    bucket: list[OwnedBlock] = []
    filled = 0
    for stack in stacks.values():
        matrix_bytes = math.prod(stack[0].block.shape) * element
        size = max(1, budget // matrix_bytes)
        for first in range(0, len(stack), size):
            chunk = stack[first : first + size]
            if bucket and filled + matrix_bytes * len(chunk) > budget:
                yield bucket
                bucket, filled = [], 0
            bucket = bucket + chunk
            filled += matrix_bytes * len(chunk)
    if bucket:
        yield bucket


def layouts(ranks: int) -> dict[str, tuple[int, int]]:
    """Return the number of replicas and shards of each layout for a number of ranks."""
    found = {"replicated (DDP)": (ranks, 1), "sharded (FSDP2)": (1, ranks)}
    return found | ({"both (HSDP)": (ranks // NODE, NODE)} if ranks > NODE else {})


def groups_of(name: str, method: str) -> list[dict]:
    """Return a model's groups of hidden matrices with all options of Muon."""
    with torch.device("meta"):
        model = build(name)
    return METHODS[method](split_params(model, rules=model.matrix_rules).matrices).param_groups


def priced_blocks(groups: list[dict], shards: int) -> tuple[list[MatrixBlock], list[float]]:
    """Return the blocks of all matrices, cut by rows as fully_shard does, and their operations."""
    blocks, costs = [], []
    for group in groups:
        for p in group["params"]:
            for block in matrix_blocks(p.shape, group["matrix_view"], 0, shards):
                blocks.append(block)
                costs.append(block_cost(group["orthogonalizer"], block.matrices, torch.float32, torch.device("cpu")))
    return blocks, costs


def projected(name: str, method: str, hardware: Hardware, element: int) -> dict[str, object]:
    """Return a model's rows under one Muon."""
    groups = groups_of(name, method)
    rows = []
    for ranks in RANKS:
        for layout, (replicas, shards) in layouts(ranks).items():
            projection = project(
                *priced_blocks(groups, shards), RankGrid.simulated(replicas, shards), hardware, element=element
            )
            if projection.sent != projection.simulated:
                raise SystemExit(
                    f"{layout} on {ranks} ranks sends {projection.simulated} elements, by the formula {projection.sent}"
                )
            rows.append(row(layout, projection))
    blocks, costs = priced_blocks(groups, 1)
    return {
        "model": name,
        "muon": method,
        "matrices": len(blocks),
        "elements": sum(block.piece_elements(0) for block in blocks),
        "operations": sum(costs),
        "rows": rows,
    }


def row(layout: str, projection: Projection) -> dict[str, object]:
    return {
        "layout": layout,
        "ranks": projection.replicas * projection.shards,
        "replicas": projection.replicas,
        "shards": projection.shards,
        "balance": projection.balance,
        "operations_of_busiest": projection.operations,
        "elements_sent": projection.sent,
        "elements_sent_simulated": projection.simulated,
        "elements_sent_by_busiest": projection.max_sent,
        "elements_received_by_busiest": projection.max_received,
        "messages_of_busiest": projection.max_messages,
        "compute_ms": projection.compute * 1e3,
        "communication_ms": projection.communication * 1e3,
        "one_after_the_other_ms": projection.sequential * 1e3,
        "overlapped_ms": projection.overlapped * 1e3,
        "everyone_does_everything_ms": projection.redundant * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=float, default=HARDWARE.operations, help="assumed, per second and rank")
    parser.add_argument("--bandwidth", type=float, default=HARDWARE.bandwidth, help="assumed, bytes per second and way")
    parser.add_argument("--latency", type=float, default=HARDWARE.latency, help="assumed, seconds per message")
    parser.add_argument("--element", type=int, default=ELEMENT, help="bytes of an entry that is sent")
    options = vars(parser.parse_args())
    arguments = [f"--{name} {value:g}" for name, value in options.items() if value != parser.get_default(name)]
    element = options.pop("element")
    hardware = Hardware(**options)
    report = {
        "command": " ".join(["python benchmarks/projection.py", *arguments]),
        "what": "a projection from the cost model and simulated messages; no step was timed",
        "assumed": {
            "operations_per_second_and_rank": hardware.operations,
            "bytes_per_second_of_a_link_each_way": hardware.bandwidth,
            "seconds_per_message": hardware.latency,
            "bytes_per_element": element,
            "source": "round figures, assumed; not measured",
        },
        "models": [projected(name, method, hardware, element) for name in MODELS for method in METHODS],
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
