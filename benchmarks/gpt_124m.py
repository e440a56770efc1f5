"""Two updates of the 124M GPT on a CPU: seconds per update and peak memory. Prints JSON.

The cell is that of the study gpt-124m-fineweb at its paper profile (batches of 8 sequences of 1,024 tokens, on a CPU in
float32 and one sequence at a time), cut to two updates and to the text that is there, run by the runner.

    python benchmarks/gpt_124m.py            # minutes; MUONLAB_DATA names web-text/ and gpt2-tokenizer/
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import resource
import tempfile
from pathlib import Path

from muonlab.lab import run
from muonlab.lab.studies import find
from muonlab.lab.study import Axis


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizer", default="Muon (q=3)", help="a label of the study")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    settings = {"steps": options.steps, "train": 1_000_000, "test": 2_049, "evaluate_every": 1}
    study = find("gpt-124m-fineweb")
    point = next(point for point in study.axes[0].points if point.label == options.optimizer)
    study = dataclasses.replace(study, axes=(Axis("optimizer", (point,)),))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        (cell,) = run(study, "paper", seeds=1, out=out, threads=options.threads, settings=settings).cells
    if cell.status != "done":
        raise SystemExit(cell.error)
    seconds = [row["seconds"] for row in cell.metrics]
    report = {
        "command": f"python benchmarks/gpt_124m.py --steps {options.steps} --threads {options.threads}",
        "optimizer": options.optimizer,
        "parameters": cell.summary["parameters"],
        "threads": options.threads,
        "spec": {name: cell.spec[name] for name in ("batch_size", "micro_batch", "block", "precision")},
        "seconds_per_update": [later - sooner for sooner, later in itertools.pairwise(seconds)],
        "losses": [row.get("train_loss", row["test_loss"]) for row in cell.metrics],
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
