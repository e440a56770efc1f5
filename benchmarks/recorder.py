"""What recording costs: training steps with and without a Recorder, interleaved in one process. Prints JSON.

Each round trains the same number of steps without a recorder and with one, in turns, from where the last round stopped;
recording does not change a bit of the training, so both sides do the same work otherwise. The aim is at most 5 % at the
default cadence of every 50th step.

    python benchmarks/recorder.py            # minutes; MUONLAB_DATA names the data
    python benchmarks/recorder.py --quick    # one task, few rounds
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import tasks

from muonlab import Muon, MuonWithAux, split_params
from muonlab.diagnostics import Recorder

EVERY = 50


def seconds(
    task: tasks.Task, model: torch.nn.Module, opt: MuonWithAux, stream: Iterator[tasks.Batch], steps: int
) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        opt.zero_grad()
        task.loss(model, next(stream)).backward()
        opt.step()
    return time.perf_counter() - start


def cost(task: tasks.Task, *, rounds: int, steps: int) -> dict[str, object]:
    """Time rounds of `steps` steps: bare, recording every 50th step, and every step, by each way of measuring."""
    torch.manual_seed(0)
    model = task.model()
    split = split_params(model)
    opt = MuonWithAux(Muon(split.matrices), torch.optim.AdamW(split.rest, lr=1e-3))
    stream = task.batches(0)
    sides: dict[str, tuple[int, str, int]] = {"every 50": (EVERY, "spectrum", steps)}
    few = max(2, steps // 10)
    sides |= {f"every 1, {m}": (1, m, few) for m in ("spectrum", "exact", "bracket")}
    seconds(task, model, opt, stream, 5)
    bare, recorded = [], {name: [] for name in sides}
    for _ in range(rounds):
        bare.append(seconds(task, model, opt, stream, steps) / steps)
        for name, (every, measure, count) in sides.items():
            with Recorder(opt, every=every, measure=measure, to=lambda _: None):
                recorded[name].append(seconds(task, model, opt, stream, count) / count)
    base = statistics.median(bare)
    return {
        "task": task.name,
        "what": task.what,
        "matrices": sum(len(group["params"]) for group in opt.muon.param_groups),
        "rounds": rounds,
        "steps_per_round": steps,
        "seconds_per_step": base,
        "overhead": {
            name: statistics.median(a / b for a, b in zip(t, bare, strict=True)) - 1 for name, t in recorded.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    made = [tasks.mnist()] if quick else [tasks.mnist(), tasks.gpt(width=256, length=128)]
    rows = [cost(task, rounds=2 if quick else 7, steps=EVERY) for task in made]
    command = "python benchmarks/recorder.py" + (" --quick" if quick else "")
    print(json.dumps({"command": command, "every": EVERY, "threads": torch.get_num_threads(), "tasks": rows}, indent=2))


if __name__ == "__main__":
    main()
