"""Does the clock of a cell depend on what else the machine does? The same cell alone and beside other processes.

One cell is trained with one thread on one core: alone, beside a process that keeps another core busy, and beside one
that shares its core. The neighbour either computes (matrix products) or moves memory (copies of 64 MB). For each, the
wall and the processor seconds of training are compared with those alone. Conditions are interleaved, medians are
compared. Run it on a quiet machine with at least two cores:

    python benchmarks/clock.py > results/clock.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from muonlab.lab import run
from muonlab.orthogonalize.hardware import processor

NEIGHBOURS = {
    "products": "import torch; torch.set_num_threads(1); A = torch.ones(512, 512)\nwhile True: A @ A",
    "copies": "import torch; torch.set_num_threads(1); a = torch.ones(2**24); b = a.clone()\nwhile True: b.copy_(a)",
}
CELLS = {
    "digits, Muon (q=3)": ("quickstart", "small", {"epochs": 200, "record_every": 0}, "Muon (q=3)"),
    "digits, SGD-M": ("quickstart", "small", {"epochs": 400, "record_every": 0}, "SGD-M"),
}


def seconds_of(cell: str) -> dict[str, float]:
    """Train a cell in a process of its own, on the first core; return its clocks."""
    done = subprocess.run(
        [sys.executable, __file__, "--train", cell], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return json.loads(done.stdout)


def train(cell: str) -> dict[str, float]:
    study, profile, settings, label = CELLS[cell]
    os.sched_setaffinity(0, {0})
    with tempfile.TemporaryDirectory() as folder:
        from muonlab.lab.studies import find
        from muonlab.lab.study import Axis

        found = find(study)
        point = next(point for point in found.axes[0].points if point.label == label)
        one = type(found)(**{**vars(found), "axes": (Axis("optimizer", (point,)),)})
        (result,) = run(one, profile, seeds=1, threads=1, settings=settings, out=Path(folder) / "run").cells
    return {name: result.summary[name] for name in ("seconds", "cpu_seconds", "other_seconds")}


@contextmanager
def neighbour(kind: str | None, core: int):
    """Run a process beside the cell, on a core."""
    if kind is None:
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\n{NEIGHBOURS[kind]}"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def conditions() -> dict[str, tuple[str | None, int]]:
    places = {"another core": 1, "the same core": 0}
    beside = {f"{kind} on {where}": (kind, core) for kind in NEIGHBOURS for where, core in places.items()}
    return {"alone": (None, 0), **beside}


def compare(cell: str, repeats: int) -> dict[str, object]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in conditions()}
    for repeat in range(repeats):
        for name, (kind, core) in conditions().items():
            with neighbour(kind, core):
                found[name].append(seconds_of(cell))
            print(f"{cell}, {name}, {repeat + 1} of {repeats}: {found[name][-1]}", file=sys.stderr, flush=True)
    medians = {
        name: {clock: statistics.median(one[clock] for one in rows) for clock in ("seconds", "cpu_seconds")}
        for name, rows in found.items()
    }
    alone = medians["alone"]
    return {
        "cell": cell,
        "repeats": found,
        "over_alone": {
            name: {
                "wall": clocks["seconds"] / alone["seconds"],
                "cpu": clocks["cpu_seconds"] / alone["cpu_seconds"],
            }
            for name, clocks in medians.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--train", choices=[*CELLS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(options.train)))
        return
    cells = [compare(cell, options.repeats) for cell in CELLS]
    computing = [ratios for one in cells for name, ratios in one["over_alone"].items() if name.startswith("products")]
    print(
        json.dumps(
            {
                "processor": processor(),
                "cores": os.cpu_count(),
                "cells": cells,
                "largest_change_beside_products": {
                    clock: max(abs(ratios[clock] - 1) for ratios in computing) for clock in ("wall", "cpu")
                },
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
