"""WideResNet-28-10 on Tiny-ImageNet with the optimizers of the paper's tables."""

from __future__ import annotations

from muonlab.lab import Profile, Spec, Study
from muonlab.lab.studies._points import OPTIMIZERS

STUDY = Study(
    number=4,
    name="wrn-tiny-imagenet",
    title="WideResNet-28-10 on Tiny-ImageNet",
    claims=(
        "Muon with Newton-Schulz steps ends at a lower training loss than SGD-M, lower with more steps.",
        "At every moment of the wall clock Muon with Newton-Schulz steps is ahead of Muon (SVD).",
    ),
    items=("Figure 5", "Table 5"),
    base=Spec(
        model="wrn-28-10", dataset="tiny-imagenet", lr=0.08, momentum=0.7, smoothing=0.2, batch_size=128, epochs=30
    ),
    axes=(OPTIMIZERS,),
    profiles={
        "smoke": Profile(
            1,
            "WideResNet-10-1, 32 training and 16 test images, batches of 8, 6 epochs, 1 run",
            {"model": "wrn-10-1", "train": 32, "test": 16, "batch_size": 8, "epochs": 6, "evaluate_every": 6},
        ),
        "small": Profile(
            3,
            "WideResNet-10-1, 4,000 training and 200 test images, batches of 16, 10 epochs, 3 runs",
            {"model": "wrn-10-1", "train": 4_000, "test": 200, "batch_size": 16, "epochs": 10},
        ),
        "paper": Profile(3),
    },
)
