"""Queries, keys and values as one matrix, as three, or head by head: losses of a byte-level GPT. Prints JSON.

The network has 3 blocks of width 64 with 4 heads and sees 64 bytes at a time; the data are the bytes of a text, of
which the last tenth is for validation. Every way has one tuned number, Muon's learning rate, from a grid of four, by
the mean validation loss over three seeds. Within a seed all start from the same weights and see the same batches.

    OMP_NUM_THREADS=1 python benchmarks/heads.py TEXT            # minutes; TEXT is a file of a megabyte or more
    OMP_NUM_THREADS=1 python benchmarks/heads.py TEXT --quick    # seconds: one seed, one rate, few steps
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from muonlab import Muon, MuonWithAux, split_params
from muonlab.lab.models.gpt import GPT

WIDTH, HEADS, LAYERS, BLOCK, BATCH = 64, 4, 3, 64, 16
AUX_LR = 3e-3
"""AdamW's learning rate for embeddings, norms and biases, fixed in advance."""
QKV, PROJECT = "blocks.*.attention.qkv.weight", "blocks.*.attention.project.weight"
WAYS: dict[str, dict[str, Any]] = {
    "one matrix": {QKV: "flatten", PROJECT: "flatten"},
    "three matrices": {QKV: (WIDTH,) * 3, PROJECT: "flatten"},
    "queries, keys and values by head": {QKV: f"row_heads({WIDTH // HEADS})", PROJECT: "flatten"},
    "by head, with the output projection": {
        QKV: f"row_heads({WIDTH // HEADS})",
        PROJECT: f"column_heads({WIDTH // HEADS})",
    },
}


def batch(text: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random pieces of the text, and the byte after each of their bytes."""
    starts = torch.randint(len(text) - BLOCK, (BATCH,), generator=generator)
    pieces = text[starts[:, None] + torch.arange(BLOCK + 1)].long()
    return pieces[:, :-1], pieces[:, 1:]


def train(text: Tensor, way: str, lr: float, seed: int, steps: int) -> float:
    """Return the validation loss, in nats per byte, after training; the rates fall linearly to zero."""
    torch.manual_seed(seed)
    model = GPT(BLOCK, 256, layers=LAYERS, heads=HEADS, width=WIDTH)
    split = split_params(model, rules={**WAYS[way], "blocks.*.contract.weight": "flatten"})
    optimizer = MuonWithAux(Muon(split.matrices, lr=lr), torch.optim.AdamW(split.rest, lr=AUX_LR))
    schedule = LambdaLR(optimizer, lambda step: 1 - step / steps)
    cut = len(text) * 9 // 10
    generator = torch.Generator().manual_seed(1000 + seed)
    for _ in range(steps):
        x, y = batch(text[:cut], generator)
        optimizer.zero_grad()
        cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        schedule.step()
    generator.manual_seed(0)
    with torch.no_grad():
        pairs = [batch(text[cut:], generator) for _ in range(20)]
        return statistics.fmean(float(cross_entropy(model(x).flatten(0, 1), y.flatten())) for x, y in pairs)


def compare(text: Tensor, *, rates: tuple[float, ...], seeds: tuple[int, ...], steps: int) -> dict[str, Any]:
    """Return for each way the losses of every rate, and the best rate."""
    ways: dict[str, Any] = {}
    for way in WAYS:
        losses = {lr: [train(text, way, lr, seed, steps) for seed in seeds] for lr in rates}
        best = min(losses, key=lambda lr: statistics.fmean(losses[lr]))
        mean = statistics.fmean(losses[best])
        error = statistics.stdev(losses[best]) / math.sqrt(len(seeds)) if len(seeds) > 1 else None
        ways[way] = {
            "best_lr": best,
            "loss": mean,
            "standard_error": error,
            "losses": {str(k): v for k, v in losses.items()},
        }
    whole = ways["three matrices"]
    for found in ways.values():  # by seed: the same start and the same batches
        pairs = zip(found["losses"][str(found["best_lr"])], whole["losses"][str(whole["best_lr"])], strict=True)
        found["minus_three_matrices"] = [a - b for a, b in pairs]
    return ways


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a file whose bytes are learned")
    parser.add_argument("--quick", action="store_true", help="one seed, one learning rate, few steps")
    arguments = parser.parse_args()
    text = torch.frombuffer(bytearray(arguments.text.read_bytes()), dtype=torch.uint8)
    budget: dict[str, Any] = {"rates": (0.005, 0.01, 0.02, 0.04), "seeds": (0, 1, 2), "steps": 600}
    if arguments.quick:
        budget = {"rates": (0.02,), "seeds": (0,), "steps": 20}
    report = {"bytes": len(text), **budget, "ways": compare(text, **budget)}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
