"""Does AutoSteps reach the loss of five Newton-Schulz steps at lower cost? Prints JSON.

For each seed every way trains from the same weights on the same batches, learning rate 0.02 falling to zero for Muon
(its defaults otherwise) and 0.001 for AdamW on the rest. Cost is the operations of all orthogonalizations by the cost
model (a number of steps has one cost; times would be those of this machine's day); the share of the whole step that
they take is measured too, so that the saving can be judged.

    python benchmarks/autosteps.py            # a quarter of an hour; MUONLAB_DATA names the data
    python benchmarks/autosteps.py --quick    # one task, one seed, few steps
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

sys.path.insert(0, str(Path(__file__).parent))
import tasks

from muonlab import Muon, MuonWithAux, NewtonSchulz, split_params
from muonlab.diagnostics import AutoSteps
from muonlab.optim.orthogonalizer import from_plain
from muonlab.orthogonalize.segments import plan_segments, segment_flops
from muonlab.polynomials import polar_express, taylor

FIXED = {f"quintic, q = {q}": NewtonSchulz(taylor(2), steps=q) for q in (1, 3, 5, 7)}
FIXED["Polar Express, 5 (default)"] = NewtonSchulz(accuracy="half")
QUINTIC, DEFAULT = FIXED["quintic, q = 5"], FIXED["Polar Express, 5 (default)"]
GENERATED = NewtonSchulz(polar_express(ell=0.01, steps=5), accuracy="half")
AUTO = {f"quintic, AutoSteps {a}": (QUINTIC, a) for a in (0.8, 0.95)}
AUTO |= {f"Polar Express for [0.01, 1], AutoSteps {a}": (GENERATED, a) for a in (0.75, 0.9)}
AUTO |= {"Polar Express, AutoSteps 0.95": (DEFAULT, 0.95)}
FAMILIES = {GENERATED: lambda q: polar_express(ell=0.01, steps=q)}
"""Families that AutoSteps cannot infer from the steps of a group."""


def flops_of(muon: Muon) -> float:
    """Operations of the orthogonalizations of one step, by the cost model."""
    total = 0.0
    for group in muon.param_groups:
        how = from_plain(group["orthogonalizer"])
        for p in group["params"]:
            m, n = sorted((p.shape[0], p.numel() // p.shape[0]))
            total += segment_flops(plan_segments(how.schedule, m, n, torch.float32, how.method, how.accuracy), m, n)
    return total


def train(
    task: tasks.Task, how: NewtonSchulz, target: float | None, *, seed: int, steps: int, every: int
) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = task.model()
    split = split_params(model, by="shape")
    opt = MuonWithAux(Muon(split.matrices, orthogonalizer=how), torch.optim.AdamW(split.rest, lr=1e-3))
    schedule = LambdaLR(opt, lambda t: 1 - t / steps)
    options = {"every": every, "max_steps": 10, "family": FAMILIES.get(how)}
    auto = AutoSteps(opt, target, **options) if target else None
    stream, cost, last, inside = task.batches(seed), 0.0, [], [0.0]
    opt.muon.register_step_pre_hook(lambda *_: inside.append(-time.perf_counter()))
    opt.muon.register_step_post_hook(lambda *_: inside.append(time.perf_counter()))
    start = time.perf_counter()
    for t in range(steps):
        opt.zero_grad()
        loss = task.loss(model, next(stream))
        loss.backward()
        cost += flops_of(opt.muon)
        opt.step()
        schedule.step()
        if auto:
            auto.step()
        if t >= steps * 9 // 10:
            last.append(float(loss.detach()))
    return {
        "train_loss": statistics.fmean(last),
        "test_loss": task.test_loss(model),
        "flops": cost,
        "muon_share": sum(inside) / (time.perf_counter() - start),
        "steps_at_end": auto.steps if auto else [how.schedule.steps],
        "changes": [change._asdict() for change in auto.changes] if auto else [],
    }


def summary(runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for figure in ("train_loss", "test_loss"):
        values = [run[figure] for run in runs]
        paired = [run[figure] - other[figure] for run, other in zip(runs, base, strict=True)]
        row[figure] = {
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else 0.0,
            "by_seed": values,
            "minus_q5": statistics.fmean(paired),
            "minus_q5_standard_error": statistics.stdev(paired) / math.sqrt(len(paired)) if len(paired) > 1 else None,
        }
    row["flops_over_q5"] = statistics.fmean(a["flops"] / b["flops"] for a, b in zip(runs, base, strict=True))
    row["muon_share_of_time"] = statistics.fmean(run["muon_share"] for run in runs)
    row["steps_at_end"] = [run["steps_at_end"] for run in runs]
    row["changes"] = runs[0]["changes"]
    return row


def compare(task: tasks.Task, *, seeds: int, steps: int, every: int) -> dict[str, Any]:
    ways = {**{name: (how, None) for name, how in FIXED.items()}, **AUTO}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for seed in range(seeds):
        for name, (how, target) in ways.items():
            runs[name].append(train(task, how, target, seed=seed, steps=steps, every=every))
            print(f"{task.name}, seed {seed}, {name}: {runs[name][-1]['test_loss']:.4f}", file=sys.stderr)
    base = runs["quintic, q = 5"]
    return {
        "task": task.name,
        "what": task.what,
        "seeds": seeds,
        "steps": steps,
        "every": every,
        "ways": {name: summary(found, base) for name, found in runs.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    if quick:
        rows = [compare(tasks.mnist(), seeds=1, steps=20, every=10)]
    else:
        rows = [
            compare(tasks.mnist(), seeds=3, steps=234, every=50),
            compare(tasks.gpt(), seeds=3, steps=240, every=50),
        ]
    command = "python benchmarks/autosteps.py" + (" --quick" if quick else "")
    print(json.dumps({"command": command, "learning_rate": 0.02, "tasks": rows}, indent=2))


if __name__ == "__main__":
    main()
