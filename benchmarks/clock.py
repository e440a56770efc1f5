"""Does the time of a cell depend on what else the machine does? The same cell alone and beside other processes.

One cell is trained with one thread on one core: alone, beside a process that keeps another core busy, and beside one
that shares its core. The neighbour runs an empty loop, multiplies matrices, or copies memory. Wall and processor
seconds of training are compared with those of the run alone just before, in one process, and the median of these ratios
is reported. Run it on a quiet machine with at least two cores:

    python benchmarks/clock.py > results/clock.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, here and in the neighbours

from muonlab.lab import run
from muonlab.lab.studies import find
from muonlab.lab.study import Axis
from muonlab.orthogonalize.hardware import processor

NEIGHBOURS = {
    "an empty loop": "while True: pass",
    "products of 512×512": "import torch; A = torch.ones(512, 512)\nwhile True: A @ A",
    "copies of 64 MB": "import torch; a = torch.ones(2**24); b = a.clone()\nwhile True: b.copy_(a)",
}
PLACES = {"another core": 1, "the same core": 0}
CELLS = {"SGD-M": 40, "Muon (q=3)": 20, "Muon (SVD)": 8}
"""Epochs of the paper's MLP on digits, by optimizer: about a second each."""
SETTINGS = {"model": "mlp", "batch_size": 256, "record_every": 0}
CLOCKS = {"wall": "seconds", "cpu": "cpu_seconds"}


def train(label: str) -> dict[str, float]:
    """Train the cell of an optimizer; return its clocks."""
    study = find("quickstart")
    point = next(point for point in study.axes[0].points if point.label == label)
    one = dataclasses.replace(study, axes=(Axis("optimizer", (point,)),))
    settings = {**SETTINGS, "epochs": CELLS[label]}
    with tempfile.TemporaryDirectory() as folder:
        (cell,) = run(one, "small", seeds=1, threads=1, settings=settings, out=Path(folder) / "run").cells
    return {name: cell.summary[field] for name, field in CLOCKS.items()}


@contextmanager
def neighbours() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Start every neighbour on its core, and halt it until it is wanted."""
    found = {}
    try:
        for where, core in PLACES.items():
            for kind, program in NEIGHBOURS.items():
                pinned = f"import os; os.sched_setaffinity(0, {{{core}}})\n{program}"
                found[f"{kind} on {where}"] = subprocess.Popen([sys.executable, "-c", pinned])
        time.sleep(10)  # until each of them is in its loop
        for process in found.values():
            process.send_signal(signal.SIGSTOP)
        yield found
    finally:
        for process in found.values():
            process.kill()
            process.wait()


def compare(label: str, repeats: int, others: dict[str, subprocess.Popen[bytes]]) -> dict[str, object]:
    """Return the median ratio of each clock beside each neighbour to the run alone before it."""
    train(label)  # to warm up
    ratios: dict[str, dict[str, list[float]]] = {name: {clock: [] for clock in CLOCKS} for name in ("alone", *others)}
    seconds = []
    for _ in range(repeats):
        for name in ratios:
            alone = train(label)
            if name != "alone":
                others[name].send_signal(signal.SIGCONT)
            beside = train(label)
            if name != "alone":
                others[name].send_signal(signal.SIGSTOP)
            seconds.append(alone["cpu"])
            for clock in CLOCKS:
                ratios[name][clock].append(beside[clock] / alone[clock])
    return {
        "cell": f"the paper's MLP on digits, {label}, {CELLS[label]} epochs",
        "cpu_seconds_alone": {"median": statistics.median(seconds), "least": min(seconds), "most": max(seconds)},
        "median_ratio_to_alone": {
            name: {clock: statistics.median(values) for clock, values in found.items()}
            for name, found in ratios.items()
        },
        "ratios": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    os.sched_setaffinity(0, {0})
    with neighbours() as others:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # as results/runs.sh runs cells
        cells = [compare(label, repeats, others) for label in CELLS]
    machine = {"processor": processor(), "cores": os.cpu_count(), "repeats": repeats}
    print(json.dumps({"machine": machine, "cells": cells}, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
