"""Two updates of the 124M GPT on a CPU: seconds per update and peak memory. Prints JSON.

The cell is that of the study gpt-124m-fineweb at its paper profile (batches of 8 sequences of 1,024 tokens, on a CPU in
float32 and one sequence at a time), cut to two updates and to the text that is there, through the runner's own code.

    python benchmarks/gpt_124m.py            # minutes; MUONLAB_DATA names web-text/ and gpt2-tokenizer/
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import tempfile
from pathlib import Path

from muonlab.lab.runner.cells import CellJob, run_cell
from muonlab.lab.runner.results import read_cell
from muonlab.lab.runner.store import CellFolder
from muonlab.lab.studies import find


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizer", default="Muon (q=3)", help="a label of the study")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    settings = {"steps": options.steps, "train": 1_000_000, "test": 2_049, "evaluate_every": 1}
    study = find("gpt-124m-fineweb")
    cells = study.cells("paper", seeds=1, threads=options.threads, settings=settings)
    cell = next(cell for cell in cells if cell.label == options.optimizer)
    with tempfile.TemporaryDirectory() as folder:
        CellFolder(Path(folder)).create(cell, "")
        outcome = run_cell(CellJob(Path(folder), cell.spec, study.work, None, 1e9), lambda: False, lambda *_: None)
        found = read_cell(Path(folder))
    if outcome != "done":
        raise SystemExit(found.error)
    seconds = [row["seconds"] for row in found.metrics]
    report = {
        "command": f"python benchmarks/gpt_124m.py --steps {options.steps} --threads {options.threads}",
        "optimizer": options.optimizer,
        "parameters": found.summary["parameters"],
        "threads": options.threads,
        "spec": {name: found.spec[name] for name in ("batch_size", "micro_batch", "block", "precision")},
        "seconds_per_update": [later - sooner for sooner, later in itertools.pairwise(seconds)],
        "losses": [row.get("train_loss", row["test_loss"]) for row in found.metrics],
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
