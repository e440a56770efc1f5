"""Muon against SGD with momentum and AdamW at equal numbers of steps on real images, and Muon's defaults. Prints JSON.

Every contender has one tuned number: a learning rate from one grid of seven, by the validation loss over three seeds.
Test figures are over five other seeds. Within a seed all start from the same weights and see the same batches. The
data, 1,797 handwritten digits of 8×8, come with scikit-learn; the network is 64-128-128-10 without weight decay.

    OMP_NUM_THREADS=1 python benchmarks/digits.py            # about a quarter of an hour on one core
    OMP_NUM_THREADS=1 python benchmarks/digits.py --quick    # seconds: fewer seeds and steps, headline only
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from muonlab import SGDM, ExactPolar, Muon, NewtonSchulz, split_params
from muonlab.polynomials import taylor

GRID = tuple(float(f"{10 ** (k / 2 - 3):.3g}") for k in range(7))
"""0.001 to 1 in half decades, the same for every contender."""
BATCH = 64
TRAIN, VALIDATION = 997, 400
AUX_LR = 3e-3
"""AdamW's learning rate for head and biases, fixed in advance where Muon has AdamW beside it."""

Build = Callable[[nn.Module, float], list[Optimizer]]


@dataclass(frozen=True)
class Budget:
    """How much is run."""

    epochs: int
    selection_seeds: tuple[int, ...] = (100, 101, 102)
    evaluation_seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    @property
    def steps(self) -> int:
        """Steps of one run; an epoch drops its last, smaller batch."""
        return self.epochs * (TRAIN // BATCH)


# ---------------------------------------------------------------------------------------------------------- contenders


def sgdm(momentum: float = 0.9, nesterov: bool = False) -> Build:
    return lambda model, lr: [SGDM(model.parameters(), lr, momentum, nesterov=nesterov)]


def adamw(model: nn.Module, lr: float) -> list[Optimizer]:
    return [AdamW(model.parameters(), lr=lr, weight_decay=0.0)]


def sgdm_and_adamw(model: nn.Module, lr: float) -> list[Optimizer]:
    split = split_params(model)
    return [SGDM(split.matrices, lr, 0.9), AdamW(split.rest, lr=AUX_LR, weight_decay=0.0)]


def muon_and_sgdm(model: nn.Module, lr: float) -> list[Optimizer]:
    split = split_params(model)
    return [Muon(split.matrices, lr), SGDM(split.rest, lr, 0.9)]


def muon_and_adamw(**options: Any) -> Build:
    def build(model: nn.Module, lr: float) -> list[Optimizer]:
        split = split_params(model)
        return [Muon(split.matrices, lr, **options), AdamW(split.rest, lr=AUX_LR, weight_decay=0.0)]

    return build


CONTENDERS: dict[str, tuple[str, Build]] = {
    "muon": ("Muon on the hidden matrices, SGDM with momentum 0.9 and the same lr on head and biases", muon_and_sgdm),
    "sgdm": ("SGDM on everything, momentum 0.9", sgdm()),
    "sgdm nesterov": ("the same with Nesterov", sgdm(nesterov=True)),
    "sgdm 0.95": ("SGDM on everything, momentum 0.95 like Muon's", sgdm(0.95)),
    "sgdm 0.95 nesterov": ("the same with Nesterov, like Muon's", sgdm(0.95, True)),
    "adamw": ("AdamW on everything", adamw),
    "muon + adamw": (f"Muon on the hidden matrices, AdamW with lr {AUX_LR} on head and biases", muon_and_adamw()),
    "sgdm + adamw": (f"SGDM on the hidden matrices, AdamW with lr {AUX_LR} on head and biases", sgdm_and_adamw),
}
PAIRS = (
    *(("muon", other) for other in CONTENDERS if other.startswith("sgdm") and "adamw" not in other),
    ("muon + adamw", "sgdm + adamw"),
    ("muon + adamw", "adamw"),
    ("muon", "adamw"),
)

DEFAULTS: dict[str, dict[str, Any]] = {
    "default": {},
    "orthogonalizer: default with accuracy full": {"orthogonalizer": NewtonSchulz(accuracy="full")},
    "orthogonalizer: jordan, 5 steps": {"orthogonalizer": NewtonSchulz("jordan", steps=5)},
    "orthogonalizer: taylor(2), 5 steps": {"orthogonalizer": NewtonSchulz(taylor(2), steps=5)},
    "orthogonalizer: taylor(2), 3 steps": {"orthogonalizer": NewtonSchulz(taylor(2), steps=3)},
    "orthogonalizer: exact polar factor": {"orthogonalizer": ExactPolar()},
    "nesterov: off": {"nesterov": False},
    "momentum: 0.9": {"momentum": 0.9},
    "momentum: 0.9, nesterov: off": {"momentum": 0.9, "nesterov": False},
    "scale: none": {"scale": "none"},
    "scale: match_rms_adamw": {"scale": "match_rms_adamw"},
    "scale: spectral": {"scale": "spectral"},
}
"""Departures from Muon's defaults, each with AdamW on head and biases, whose lr does not move with Muon's."""


# -------------------------------------------------------------------------------------------------------------- one run


class Digits:
    """The data in a fixed split: ``train``, ``validation`` and ``test``, each images (N, 64) in [0, 1] and labels."""

    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        X, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
        ends = (0, TRAIN, TRAIN + VALIDATION, len(y))
        self.train, self.validation, self.test = ((X[a:b], y[a:b]) for a, b in pairwise(ends))


@dataclass(frozen=True)
class Outcome:
    """What one run reached on the part of the data that judges it."""

    loss: float
    accuracy: float
    cpu_seconds: float


def train(build: Build, lr: float, seed: int, epochs: int, data: Digits, judge: tuple[Tensor, Tensor]) -> Outcome:
    """Train once, all learning rates falling linearly to zero; ``judge`` is looked at after the last step only."""
    start = time.process_time()
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )  # the last layer is the head; 128×64 and 128×128 are Muon's
    optimizers = build(model, lr)
    steps = Budget(epochs).steps
    schedulers = [LambdaLR(optimizer, lambda t: 1 - t / steps) for optimizer in optimizers]
    X, y = data.train
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(len(y), generator=order).split(BATCH)[: len(y) // BATCH]:
            loss = cross_entropy(model(X[batch]), y[batch])
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in (*optimizers, *schedulers):
                optimizer.step()
    with torch.no_grad():
        logits = model(judge[0])
    reached = float(cross_entropy(logits, judge[1]))
    accuracy = float((logits.argmax(1) == judge[1]).double().mean())
    return Outcome(reached if math.isfinite(reached) else math.inf, accuracy, time.process_time() - start)


# --------------------------------------------------------------------------------------------------------- the protocol


def measure(what: str, build: Build, budget: Budget, data: Digits) -> dict[str, Any]:
    """Choose the learning rate by validation loss, then run the evaluation seeds on the test images."""
    tuning = {
        lr: [train(build, lr, seed, budget.epochs, data, data.validation) for seed in budget.selection_seeds]
        for lr in GRID
    }
    validation = {lr: statistics.fmean(run.loss for run in runs) for lr, runs in tuning.items()}
    lr, second = sorted(validation, key=lambda candidate: validation[candidate])[:2]
    runs, others = (
        [train(build, rate, seed, budget.epochs, data, data.test) for seed in budget.evaluation_seeds]
        for rate in (lr, second)
    )
    seconds = [run.cpu_seconds for run in (*runs, *(run for cell in tuning.values() for run in cell))]
    return {
        "what": what,
        "lr": lr,
        "lr_on_edge_of_grid": lr in (GRID[0], GRID[-1]),
        "validation_loss_by_lr": [round(v, 4) if math.isfinite(v) else None for v in validation.values()],
        "test_loss": spread([run.loss for run in runs]),
        "test_accuracy": spread([run.accuracy for run in runs]),
        "runner_up": {"lr": second, "test_loss": spread([run.loss for run in others])["mean"]},
        "cpu_ms_per_step": round(statistics.median(seconds) / budget.steps * 1e3, 2),
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, standard deviation between seeds (n - 1), and the value of each seed."""
    each = [round(v, 5) for v in values]
    return {"mean": round(statistics.fmean(values), 5), "std": round(statistics.stdev(values), 5), "by_seed": each}


def paired(rows: Mapping[str, dict[str, Any]], name: str, against: str) -> dict[str, Any]:
    """Return the differences seed by seed; a negative loss and a positive accuracy speak for ``name``."""
    report: dict[str, Any] = {"name": name, "against": against}
    for figure in ("test_loss", "test_accuracy"):
        pair = zip(rows[name][figure]["by_seed"], rows[against][figure]["by_seed"], strict=True)
        report[f"{figure}_difference"] = spread([a - b for a, b in pair])
    report["seeds_with_lower_loss"] = sum(d < 0 for d in report["test_loss_difference"]["by_seed"])
    return report


def contest(names: Sequence[str], budget: Budget, data: Digits) -> dict[str, Any]:
    rows = {name: measure(*CONTENDERS[name], budget, data) for name in names}
    pairs = [paired(rows, *pair) for pair in PAIRS if set(pair) <= set(names)]
    return {"steps": budget.steps, "epochs": budget.epochs, "rows": rows, "paired": pairs}


def defaults(budget: Budget, data: Digits) -> dict[str, Any]:
    rows = {name: measure(name, muon_and_adamw(**options), budget, data) for name, options in DEFAULTS.items()}
    return {
        "steps": budget.steps,
        "notes": [
            "one departure at a time, AdamW beside it",
            "scale spectral equals the default on these shapes (rows >= columns): its row compares nothing",
            "another scale moves the best lr off the half-decade grid, and where two learning rates tie in validation "
            "the choice between them moves the test loss as much as most departures do: see runner_up",
            "eleven departures are compared on one test set: a default is not to be chosen by these test figures",
        ],
        "rows": rows,
        "paired": [paired(rows, name, "default") for name in rows if name != "default"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer seeds and steps, and four contenders only")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    data = Digits()
    budgets = [Budget(2, (100,), (0, 1))] if quick else [Budget(5), Budget(20)]
    names = ["muon", "sgdm", "adamw", "muon + adamw"] if quick else list(CONTENDERS)
    report: dict[str, Any] = {
        "command": "OMP_NUM_THREADS=1 python benchmarks/digits.py" + (" --quick" if quick else ""),
        "versions": {"torch": str(torch.__version__)},
        "protocol": {
            "images": {name: len(getattr(data, name)[1]) for name in ("train", "validation", "test")},
            "network": "64-128-128-10, ReLU, default initialisation",
            "batch": BATCH,
            "schedule": "all learning rates fall linearly to zero; no weight decay anywhere",
            "grid": list(GRID),
            "tuned": "one learning rate each, by validation loss averaged over the selection seeds",
            "budgets": "75 and 300 steps were picked after a pilot on validation images with two selection seeds: "
            "30, 75 and 300 steps, constant and falling lr",
            "selection_seeds": list(budgets[0].selection_seeds),
            "evaluation_seeds": list(budgets[0].evaluation_seeds),
        },
        "contests": [contest(names, budget, data) for budget in budgets],
    }
    if not quick:
        report["defaults"] = [defaults(budget, data) for budget in budgets]
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
