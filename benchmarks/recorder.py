"""What recording costs: training steps with and without a Recorder, interleaved in one process. Prints JSON.

Every step is timed by itself. A round trains with the recorder at its default cadence, where one step in fifty is
recorded, and then a few steps with every way of recording each step. What a recorded step takes beyond the median of
the plain steps around it, divided by fifty, is the cost of the default cadence; the aim is at most 5 %. Recording does
not change a bit of the training, so all steps do the same work otherwise.

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
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
import tasks

from muonlab import Muon, MuonWithAux, split_params
from muonlab.diagnostics import Recorder
from muonlab.diagnostics.recording.rows import MEASURES

EVERY = 50
"""The default cadence."""


def seconds(
    task: tasks.Task, model: nn.Module, opt: MuonWithAux, stream: Iterator[tasks.Batch], steps: int
) -> list[float]:
    """Seconds of each of some training steps."""
    found = []
    for _ in range(steps):
        batch = next(stream)
        start = time.perf_counter()
        opt.zero_grad()
        task.loss(model, batch).backward()
        opt.step()
        found.append(time.perf_counter() - start)
    return found


def cost(task: tasks.Task, *, rounds: int) -> dict[str, object]:
    """Relative cost of recording, median over rounds, each against the plain steps of its own round."""
    torch.manual_seed(0)
    model = task.model()
    split = split_params(model)
    opt = MuonWithAux(Muon(split.matrices), torch.optim.AdamW(split.rest, lr=1e-3))
    stream = task.batches(0)
    with Recorder(opt, every=1):  # floors are computed once, and kept
        seconds(task, model, opt, stream, 3)
    plain, extra = [], {measure: [] for measure in MEASURES}
    default = []
    for _ in range(rounds):
        with Recorder(opt, every=EVERY, to=lambda _: None):
            first, *rest = seconds(task, model, opt, stream, EVERY)
        usual = statistics.median(rest)
        plain.append(usual)
        default.append((first - usual) / (EVERY * usual))
        for measure, found in extra.items():
            with Recorder(opt, every=1, measure=measure, to=lambda _: None):
                found.append(statistics.median(seconds(task, model, opt, stream, 5)) / usual - 1)
    return {
        "task": task.name,
        "what": task.what,
        "matrices": sum(len(group["params"]) for group in opt.muon.param_groups),
        "rounds": rounds,
        "seconds_per_step": statistics.median(plain),
        "overhead_at_the_default_cadence": {"median": statistics.median(default), "largest": max(default)},
        "overhead_of_every_step": {measure: statistics.median(found) for measure, found in extra.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    made = [tasks.mnist()] if quick else [tasks.mnist(), tasks.gpt(width=256, length=128)]
    rows = [cost(task, rounds=2 if quick else 7) for task in made]
    command = "python benchmarks/recorder.py" + (" --quick" if quick else "")
    print(json.dumps({"command": command, "every": EVERY, "threads": torch.get_num_threads(), "tasks": rows}, indent=2))


if __name__ == "__main__":
    main()
