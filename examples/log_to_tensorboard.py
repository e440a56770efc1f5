"""Show a study in TensorBoard while it runs: python examples/log_to_tensorboard.py runs/waves.

Each cell and seed is a curve; tensorboard --logdir runs/waves/tensorboard shows them. Without an argument, a short
study is run first.
"""

from __future__ import annotations

import sys
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from muonlab.lab import run, watch


def main(folder: Path) -> None:
    writers: dict[str, SummaryWriter] = {}
    for row in watch(folder):
        if row["event"] == "evaluation":
            name = f"{row['label']}, seed {row['seed']}"
            if name not in writers:
                writers[name] = SummaryWriter(str(folder / "tensorboard" / name))
            for loss in ("train_loss", "test_loss"):
                writers[name].add_scalar(loss, row[loss], row["step"])
    for writer in writers.values():
        writer.close()
    print(f"{len(writers)} curves for each loss: tensorboard --logdir {folder / 'tensorboard'}")


if __name__ == "__main__":
    main((Path(sys.argv[1]) if len(sys.argv) > 1 else run("quickstart").folder).resolve())
