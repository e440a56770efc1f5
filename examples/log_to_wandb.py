"""Log a study to Weights & Biases while it runs: python examples/log_to_wandb.py runs/waves.

Each cell and seed is a run of one project. Nothing is sent: wandb writes its files to runs/waves/wandb, and wandb sync
sends them later; delete mode="offline" to send them at once. Without an argument, a short study is run first.
"""

from __future__ import annotations

import sys
from pathlib import Path

import wandb

from muonlab.lab import load_results, run, watch


def main(folder: Path) -> None:
    project = load_results(folder).study
    runs: dict[str, wandb.Run] = {}
    for row in watch(folder):
        if row["event"] == "evaluation":
            name = f"{row['label']}, seed {row['seed']}"
            if name not in runs:
                config = {"label": row["label"], "seed": row["seed"]}
                runs[name] = wandb.init(
                    project=project, name=name, dir=folder, config=config, mode="offline", reinit="create_new"
                )
            runs[name].log({loss: row[loss] for loss in ("train_loss", "test_loss")}, step=row["step"])
    for each in runs.values():
        each.finish()
    print(f"{len(runs)} runs: wandb sync {folder / 'wandb'}/offline-run-*")


if __name__ == "__main__":
    main((Path(sys.argv[1]) if len(sys.argv) > 1 else run("quickstart").folder).resolve())
