"""What the orthogonalizations of a step would take on up to 1,024 ranks: a projection, not a measurement. Prints JSON.

Matrices are those of the paper's two GPTs, on the meta device; costs, owners and messages are those of the optimizer
itself, played through without processes. Three numbers of the hardware are assumed, in round figures of the order of a
data centre's accelerator and its network; nothing here has measured them, and one link speed stands for all distances.

    python benchmarks/projection.py                  # half a minute
    python benchmarks/projection.py --operations 4e14 --bandwidth 5e10 --latency 5e-6
"""

from __future__ import annotations

import argparse
import json

import torch

from muonlab import Muon, split_params
from muonlab.lab.models import build
from muonlab.optim.layout.blocks import Block, cut
from muonlab.optim.layout.grid import Grid
from muonlab.optim.layout.plan import cost
from muonlab.optim.layout.projection import Hardware, Projection, project

MODELS, RANKS, NODE = ("gpt-124m", "gpt-1.3b"), (1, 8, 64, 1024), 8
HARDWARE = Hardware(operations=1e14, bandwidth=2.5e10, latency=1e-5)
ELEMENT = 4
"""Bytes of float32, in which matrices are held and sent."""
METHODS = {
    "paper, q=3, kappa=2": lambda groups: Muon.paper(groups, lr=0.02, momentum=0.95, q=3, kappa=2),
    "default": lambda groups: Muon(groups, lr=0.02),
}


def layouts(ranks: int) -> dict[str, tuple[int, int]]:
    """Return replicas and shards of each layout that so many ranks allow."""
    found = {"replicated (DDP)": (ranks, 1), "sharded (FSDP2)": (1, ranks)}
    return found | ({"both (HSDP)": (ranks // NODE, NODE)} if ranks > NODE else {})


def groups_of(name: str, method: str) -> list[dict]:
    """Return a model's groups of hidden matrices, as Muon has completed them."""
    with torch.device("meta"):
        model = build(name)
    return METHODS[method](split_params(model, rules=model.matrix_rules).matrices).param_groups


def jobs(groups: list[dict], shards: int) -> tuple[list[Block], list[float]]:
    """Return the blocks of all matrices, cut by rows as fully_shard does, and their operations."""
    blocks, costs = [], []
    for group in groups:
        for p in group["params"]:
            for block in cut(p.shape, group["matrix_view"], 0, shards):
                blocks.append(block)
                costs.append(cost(group["orthogonalizer"], block.matrices, torch.float32, torch.device("cpu")))
    return blocks, costs


def projected(name: str, method: str, hardware: Hardware, element: int) -> dict[str, object]:
    """Return a model's rows under one Muon."""
    groups = groups_of(name, method)
    rows = []
    for ranks in RANKS:
        for layout, (replicas, shards) in layouts(ranks).items():
            of = project(*jobs(groups, shards), Grid.of(replicas, shards), hardware, element=element)
            if of.sent != of.simulated:
                raise SystemExit(f"{layout} on {ranks} ranks sends {of.simulated} elements, by the formula {of.sent}")
            rows.append(row(layout, of))
    blocks, costs = jobs(groups, 1)
    return {
        "model": name,
        "muon": method,
        "matrices": len(blocks),
        "elements": sum(block.elements(0) for block in blocks),
        "operations": sum(costs),
        "rows": rows,
    }


def row(layout: str, of: Projection) -> dict[str, object]:
    return {
        "layout": layout,
        "ranks": of.ranks,
        "replicas": of.replicas,
        "shards": of.shards,
        "balance": of.balance,
        "operations_of_busiest": of.operations,
        "elements_sent": of.sent,
        "elements_sent_simulated": of.simulated,
        "elements_sent_by_busiest": of.most_sent,
        "elements_received_by_busiest": of.most_received,
        "messages_of_busiest": of.most_messages,
        "compute_ms": of.compute * 1e3,
        "communication_ms": of.communication * 1e3,
        "one_after_the_other_ms": of.apart * 1e3,
        "overlapped_ms": of.overlapped * 1e3,
        "everyone_does_everything_ms": of.everyone * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=float, default=HARDWARE.operations, help="assumed, per second and rank")
    parser.add_argument("--bandwidth", type=float, default=HARDWARE.bandwidth, help="assumed, bytes per second and way")
    parser.add_argument("--latency", type=float, default=HARDWARE.latency, help="assumed, seconds per message")
    parser.add_argument("--element", type=int, default=ELEMENT, help="bytes of an entry that is sent")
    options = vars(parser.parse_args())
    words = [f"--{name} {value:g}" for name, value in options.items() if value != parser.get_default(name)]
    element = options.pop("element")
    hardware = Hardware(**options)
    report = {
        "command": " ".join(["python benchmarks/projection.py", *words]),
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
