"""Learning rates of Muon and of AdamW beside it, on a grid: losses of an MLP on digits and of a small GPT. Prints JSON.

Each way has its grid; all rates fall linearly to zero, and there is no weight decay. Within a seed all start from the
same weights and see the same batches. Losses are on held-out data, which also choose the best rates: they compare ways
of choosing a rate, they are no test losses.

    OMP_NUM_THREADS=1 python benchmarks/learning_rates.py            # ten minutes; the GPT needs MUONLAB_DATA/web-text
    OMP_NUM_THREADS=1 python benchmarks/learning_rates.py --quick    # seconds: digits only, one seed, few steps
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

sys.path.insert(0, str(Path(__file__).parent))
import tasks

from muonlab import Muon, MuonWithAux, split_params

AUX_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
GRIDS: Mapping[str, Sequence[tuple[float, float]]] = {
    "Muon, and AdamW with its own rate": tuple(itertools.product((0.01, 0.02, 0.04), AUX_RATES)),
    "Muon (match_rms_adamw) and AdamW, one rate": tuple((rate, rate) for rate in AUX_RATES),
    "AdamW alone": tuple((rate, rate) for rate in AUX_RATES),
}
"""Rates of the hidden matrices and of the rest, by way."""


def digits(batch: int = 64) -> tasks.Task:
    """An MLP on scikit-learn's digits, the last 400 images held out."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]

    def batches(seed: int) -> Iterator[tasks.Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            some = torch.randint(len(y) - 400, (batch,), generator=generator)
            yield x[some], y[some]

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))

    what = f"MLP 64-128-128-10 on scikit-learn's digits, batches of {batch}"
    return tasks.Task("digits-mlp", what, model, batches, (x[-400:], y[-400:]))


def build(way: str, model: nn.Module, rates: tuple[float, float]) -> Optimizer:
    """Return the optimizer of a way; weight decay is zero everywhere."""
    lr, aux_lr = rates
    if way == "AdamW alone":
        return AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    split = split_params(model)
    muon = Muon(split.matrices, lr=lr, scale="match_rms_adamw" if "match_rms" in way else "original")
    return MuonWithAux(muon, AdamW(split.rest, lr=aux_lr, weight_decay=0.0))


def train(task: tasks.Task, way: str, rates: tuple[float, float], seed: int, steps: int) -> float:
    """Return the loss on held-out data after training."""
    torch.manual_seed(seed)
    model = task.model()
    optimizer = build(way, model, rates)
    schedule = LambdaLR(optimizer, lambda step: 1 - step / steps)
    stream = task.batches(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(model, next(stream)).backward()
        optimizer.step()
        schedule.step()
    return task.test_loss(model)


def compare(task: tasks.Task, *, steps: int, seeds: Sequence[int], thin: int = 1) -> dict[str, Any]:
    """Return the losses of every pair of rates, by way, and the best pair of each way."""
    ways = {}
    for way, grid in GRIDS.items():
        cells = [
            {"lr": rates[0], "aux_lr": rates[1], "losses": [train(task, way, rates, seed, steps) for seed in seeds]}
            for rates in grid[::thin]
        ]
        for cell in cells:
            cell["mean"] = statistics.fmean(cell["losses"])
            print(task.name, way, cell, file=sys.stderr)
        ways[way] = {"best": min(cells, key=lambda cell: cell["mean"]), "grid": cells}
    return {"task": task.name, "what": task.what, "steps": steps, "seeds": list(seeds), "ways": ways}


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="digits only, one seed, few rates and steps")
    if parser.parse_args().quick:
        compared = [compare(digits(), steps=60, seeds=(0,), thin=3)]
    else:
        small_gpt = tasks.gpt(layers=2, width=64)
        compared = [compare(digits(), steps=300, seeds=(0, 1, 2)), compare(small_gpt, steps=150, seeds=(0, 1))]
    print(json.dumps({"command": "python benchmarks/learning_rates.py", "tasks": compared}, indent=1))


if __name__ == "__main__":
    main()
