"""What the lab's training loop costs over a bare one written by hand: same network, batches, optimizer, same process.

The bare loop has nothing but the mathematics: images normalised beforehand and indexed, forward, loss, backward,
clipping, learning rates, step. The lab's adds normalisation by batch, the clock, sums, checks for signals and
checkpoints. Both sides take turns, a block of updates each; the ratio is of the medians. With one thread the clock is
the processor's, so that a busy machine does not matter.

Run: python benchmarks/loop.py [--blocks 9] > results/loop.json
Needs MUONLAB_DATA (mnist/, cifar10-subset/), else the hub.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from muonlab.lab.data.batches import order
from muonlab.lab.data.loading import load
from muonlab.lab.runner.cells import CellJob, RunnerContext
from muonlab.lab.spec import Spec
from muonlab.lab.training.loop import Training
from muonlab.lab.training.recipe import build_optimizer
from muonlab.lab.training.setup import build_model

TASKS = {
    "MLP on MNIST": (Spec(model="mlp", dataset="mnist", batch_size=256, smoothing=0.1, epochs=1000), 20),
    "the same, SGD-M": (
        Spec(model="mlp", dataset="mnist", batch_size=256, smoothing=0.1, epochs=1000, optimizer="sgdm"),
        40,
    ),
    "CifarNet on CIFAR-10": (
        Spec(model="cifarnet", dataset="cifar10", batch_size=256, smoothing=0.2, epochs=1000),
        1,
    ),
}


def lab_updates(spec: Spec, folder: Path) -> Callable[[int], None]:
    job = CellJob(folder, spec, "muonlab.lab.training.loop:train", None, checkpoint_seconds=1e9)
    run = Training(spec, RunnerContext(job, lambda: False, lambda *_: None))

    def updates(count: int) -> None:
        for _ in range(count):
            run.update()
            if run.step % run.evaluate_every == 0:
                run.updates_since_evaluation, run.step = 0, 0  # evaluation is no part of the loop's overhead
                run.loss_sum.zero_()
            run.save_if_due()

    return updates


def bare_updates(spec: Spec) -> Callable[[int], None]:
    data = load(spec.dataset)
    x, y = data.train.batch(torch.arange(len(data.train)))
    model = build_model(spec, data)
    optimizer = build_optimizer(spec, model)
    rates = [group["lr"] for group in optimizer.param_groups]
    trained = [p for p in model.parameters() if p.requires_grad]
    per_epoch = len(x) // spec.batch_size
    total = per_epoch * (spec.epochs or 1)
    step = 0
    shuffled = order(spec.seed, 0, len(x))
    model.train()

    def updates(count: int) -> None:
        nonlocal step
        for _ in range(count):
            first = (step % per_epoch) * spec.batch_size
            index = shuffled[first : first + spec.batch_size]
            optimizer.zero_grad()
            cross_entropy(model(x[index]), y[index], label_smoothing=spec.smoothing).backward()
            nn.utils.clip_grad_norm_(trained, spec.clip or math.inf)
            rise = 0.05 * total
            factor = (
                (step + 1) / rise if step < rise else 0.5 + 0.5 * math.cos(math.pi * (step - rise) / (total - rise))
            )
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
            step += 1

    return updates


def compare(spec: Spec, per_block: int, blocks: int, folder: Path) -> dict[str, Any]:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter  # the first minds no other process
    sides = {"lab": lab_updates(spec, folder), "bare": bare_updates(spec)}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for block in range(blocks + 1):
        for name in sorted(sides, reverse=block % 2 == 1):
            began = clock()
            sides[name](per_block)
            if block:  # the first warms up
                times[name].append((clock() - began) / per_block)
    medians = {name: statistics.median(found) for name, found in times.items()}
    ratios = [a / b for a, b in zip(times["lab"], times["bare"], strict=True)]
    return {
        "milliseconds_lab": 1e3 * medians["lab"],
        "milliseconds_bare": 1e3 * medians["bare"],
        "overhead": medians["lab"] / medians["bare"] - 1.0,
        "overhead_median_of_pairs": statistics.median(ratios) - 1.0,
        "blocks": blocks,
        "updates_per_block": per_block,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = {}
    for name, (spec, per_block) in TASKS.items():
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = compare(spec, per_block, options.blocks, Path(folder))
    command = f"python benchmarks/loop.py --blocks {options.blocks} --threads {options.threads}"
    print(json.dumps({"command": command, "threads": options.threads, "tasks": rows}, indent=2))


if __name__ == "__main__":
    main()
