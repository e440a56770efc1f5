"""A Muon step on one and two processes: time, bytes sent, and how evenly the work is shared. Prints JSON.

Sides, in one process group and with interleaved repetitions: every rank does everything (no process group), copies
that share the work (as under DistributedDataParallel), and parameters cut by rows (as under FSDP2). Ranks have one
thread and talk by gloo; on a shared machine only ratios mean anything, and two ranks need two free cores.

    python benchmarks/distributed.py            # a minute
    python benchmarks/distributed.py --quick    # few repetitions
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from muonlab import Muon, split_params
from muonlab.lab.models.gpt import GPT
from muonlab.optim.distributed.exchange import OwnedBlock, elements_sent
from muonlab.optim.distributed.grid import RankGrid
from muonlab.optim.distributed.plan import assign_owners, block_cost
from muonlab.optim.views import MatrixBlock, matrix_blocks
from muonlab.orthogonalize.hardware import diagnose

HOST = "127.0.0.1"
WIDTH, LAYERS = 256, 4
DEADLINE = 600.0
PLANNED_FOR = (2, 4, 8, 64)
GRIDS = {"replicated": lambda ranks: (ranks, 1), "sharded": lambda ranks: (1, ranks)}
"""Replicas and shards of a side."""


# ----------------------------------------------------------------------------------------------------- inside a rank


def groups_of(model: nn.Module, place: Callable[[Tensor], Tensor]) -> list[dict[str, Any]]:
    """Return the groups of a model's matrices, each parameter put into its place, with a gradient."""
    generator = torch.Generator().manual_seed(0)
    groups = split_params(model, rules=model.matrix_rules).matrices
    for group in groups:
        placed = []
        for name, p in group["params"]:
            q = nn.Parameter(place(p.detach().clone()))
            q.grad = place(torch.randn(p.shape, generator=generator))
            placed.append((name, q))
        group["params"] = placed
    return groups


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the bytes that this rank sends to others: by all_to_all_single, and a copy for each by broadcast."""
    sent = [0]
    exchange, broadcast = dist.all_to_all_single, dist.broadcast

    def exchanging(output: Tensor, given: Tensor, there: Any = None, here: Sequence[int] = (), **rest: Any) -> Any:
        sent[0] += (sum(here) - here[dist.get_rank(rest.get("group"))]) * given.element_size()
        return exchange(output, given, there, here, **rest)

    def broadcasting(tensor: Tensor, source: int, **rest: Any) -> Any:
        sent[0] += tensor.nbytes * (dist.get_world_size(rest.get("group")) - 1) * (source == dist.get_rank())
        return broadcast(tensor, source, **rest)

    with mock.patch.multiple(dist, all_to_all_single=exchanging, broadcast=broadcasting):
        yield sent


def work(rank: int, size: int, port: int, rounds: int, width: int) -> None:
    """Time all sides on this rank; the first rank prints what all found."""
    torch.set_num_threads(1)
    store = dist.TCPStore(HOST, port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    model = GPT(64, 256, layers=LAYERS, heads=4, width=width)

    def by_rows(W: Tensor) -> DTensor:
        return distribute_tensor(W, mesh, [Shard(0)], src_data_rank=None)

    sides = {
        "every rank does everything": Muon(groups_of(model, lambda W: W)),
        "replicated": Muon(groups_of(model, lambda W: W), process_group=dist.group.WORLD),
        "sharded": Muon(groups_of(model, by_rows)),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    sent: dict[str, int] = {}
    for turn in range(rounds + 2):
        for name, optimizer in sides.items():
            dist.barrier()
            with counted() as bytes_sent:
                start = time.perf_counter()
                optimizer.step()
                seconds = time.perf_counter() - start
            sent[name] = bytes_sent[0]
            if turn >= 2:
                times[name].append(seconds)
    slowest = torch.tensor(list(times.values()))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    total = torch.tensor(list(sent.values()))
    dist.all_reduce(total)
    owned = torch.tensor([optimizer.orthogonalized for optimizer in sides.values()])
    dist.all_reduce(owned)
    alike = _same_weights(sides)
    if rank == 0:
        shapes = [p.shape for group in sides["replicated"].param_groups for p in group["params"]]
        elements = sum(shape.numel() for shape in shapes)
        rows = zip(sides, slowest.tolist(), total.tolist(), owned.tolist(), strict=True)
        base = slowest[0].tolist()
        report = {
            "ranks": size,
            "elements": elements,
            "weights_are_bitwise_equal": alike,
            "sides": {
                name: {
                    "median_ms": round(statistics.median(seconds) * 1e3, 3),
                    "speedup_over_everything": round(
                        statistics.median(a / b for a, b in zip(base, seconds, strict=True)), 3
                    ),
                    "orthogonalized_by_all_ranks": count,
                    "elements_sent_by_all_ranks": sent_by_all // 4,
                    "elements_sent_by_formula": formula(name, sides[name], size),
                }
                for name, seconds, sent_by_all, count in rows
            },
        }
        print(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()


def formula(side: str, optimizer: Muon, ranks: int) -> int:
    """Return the elements that all ranks together send: (mn - c) + (R·mn - c) for each matrix, c what its owner has."""
    if side not in GRIDS:
        return 0
    grid = RankGrid.simulated(*GRIDS[side](ranks))
    blocks, costs = priced(optimizer, grid.shards)
    owners = assign_owners(costs, ranks)
    return sum(elements_sent(OwnedBlock(block, owner), grid) for block, owner in zip(blocks, owners, strict=True))


def balance(costs: Sequence[float], owners: Sequence[int], ranks: int) -> float:
    """Return the largest load divided by the mean load; 1 is perfect."""
    loads = [0.0] * ranks
    for cost, owner in zip(costs, owners, strict=True):
        loads[owner] += cost
    return max(loads) * ranks / sum(loads) if sum(loads) else 1.0


def priced(optimizer: Muon, shards: int = 1) -> tuple[list[MatrixBlock], list[float]]:
    """Return every matrix of an optimizer as a block that so many shards hold, and its cost."""
    blocks, costs = [], []
    for group in optimizer.param_groups:
        for p in group["params"]:
            for block in matrix_blocks(p.shape, group["matrix_view"], shards=shards):
                blocks.append(block)
                costs.append(block_cost(group["orthogonalizer"], block.matrices, p.dtype, torch.device("cpu")))
    return blocks, costs


def _same_weights(sides: dict[str, Muon]) -> bool:
    found = [[p.detach() for group in muon.param_groups for p in group["params"]] for muon in sides.values()]
    whole = [[p.full_tensor() if isinstance(p, DTensor) else p for p in side] for side in found]
    return all(torch.equal(a, b) for side in whole[1:] for a, b in zip(whole[0], side, strict=True))


# -------------------------------------------------------------------------------------------------------- the parent


def timed(size: int, rounds: int, width: int = WIDTH) -> dict[str, Any]:
    """Start the ranks and return what the first of them found."""
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    settings = {"size": size, "port": store.port, "rounds": rounds, "width": width}
    command = [sys.executable, __file__, *(f"--{name}={value}" for name, value in settings.items())]
    ranks = [
        # the first rank alone has something to say
        subprocess.Popen([*command, f"--rank={rank}"], stdout=None if rank else subprocess.PIPE, env=env, text=True)
        for rank in range(size)
    ]
    try:
        out, _ = ranks[0].communicate(timeout=DEADLINE)
        failed = [rank for rank, process in enumerate(ranks) if process.wait(timeout=60)]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    if failed:
        raise SystemExit(f"ranks {failed} of {size} failed: see above")
    found: dict[str, Any] = json.loads(out)
    return found


def planned() -> dict[str, Any]:
    """Return how evenly the matrices of the 124M GPT are shared out, most over mean, on simulated ranks."""
    with torch.device("meta"):
        model = GPT()
    optimizer = Muon(split_params(model, rules=model.matrix_rules).matrices)
    _, costs = priced(optimizer)
    return {
        "network": "gpt-124m",
        "matrices": len(costs),
        "most_over_mean": {str(n): round(balance(costs, assign_owners(costs, n), n), 4) for n in PLANNED_FOR},
        # no plan does better than the largest matrix alone on its rank
        "at_least": {str(n): round(max(1.0, max(costs) * n / sum(costs)), 4) for n in PLANNED_FOR},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    for hidden in ("rank", "size", "port", "rounds", "width"):
        parser.add_argument(f"--{hidden}", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        work(arguments.rank, arguments.size, arguments.port, arguments.rounds, arguments.width)
        return
    rounds = 3 if arguments.quick else 25
    report = {
        "command": "python benchmarks/distributed.py" + (" --quick" if arguments.quick else ""),
        "machine": diagnose(),
        "network": f"GPT-2 blocks: {LAYERS} of width {WIDTH}",
        "rounds": rounds,
        "steps": [timed(size, rounds) for size in (1, 2)],
        "plan": planned(),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
