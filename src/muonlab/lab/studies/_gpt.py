"""Language models on FineWeb: the base and the profiles of two studies."""

from __future__ import annotations

from muonlab.lab import Profile, Spec
from muonlab.lab.study import ProfileName

BASE = Spec(
    dataset="fineweb",
    lr=0.02,
    momentum=0.95,
    smoothing=0.0,
    batch_size=8,
    steps=6_000,
    evaluate_every=250,
    train=10_000_000,
    test=1_000_000,
    block=1024,
    precision="bfloat16",  # the printed losses are bfloat16 numbers
)

CLAIMS = (
    "Muon with Newton-Schulz steps reaches a lower training loss than SGD-M at every moment of the wall clock.",
    "At every moment of the wall clock Muon with Newton-Schulz steps is ahead of Muon (SVD).",
)


def profiles(*, micro_batch: int) -> dict[ProfileName, Profile]:
    """Return the three profiles; ``micro_batch`` fits the memory of the paper's GPUs (24 GB), also in evaluations."""
    smaller = {"precision": "float32"}
    return {
        "smoke": Profile(
            1,
            "2 layers of width 32, sequences of 32, 20,000 training and 300 validation tokens, batches of 3, "
            "24 updates, 1 run, in float32",
            {
                **smaller,
                "model": "gpt-smoke",
                "block": 32,
                "train": 20_000,
                "test": 300,
                "batch_size": 3,
                "micro_batch": 3,
                "steps": 24,
                "evaluate_every": 8,
            },
        ),
        "small": Profile(
            3,
            "4 layers of width 128, sequences of 64, 1,000,000 training and 4,000 validation tokens, batches of 4, "
            "600 updates, 3 runs, in float32",
            {
                **smaller,
                "model": "gpt-small",
                "block": 64,
                "train": 1_000_000,
                "test": 4_000,
                "batch_size": 4,
                "steps": 600,
                "micro_batch": 4,
                "evaluate_every": 50,
            },
        ),
        "paper": Profile(
            1,
            settings={"micro_batch": micro_batch},
            on_cpu={"micro_batch": 1, **smaller},  # the logits of one sequence are 0.2 GB
        ),
    }
