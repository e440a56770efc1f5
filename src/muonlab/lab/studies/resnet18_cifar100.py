"""ResNet-18 on CIFAR-100 with the optimizers of the paper's tables."""

from __future__ import annotations

from muonlab.lab import Profile, Spec, Study
from muonlab.lab.studies._points import OPTIMIZERS

STUDY = Study(
    number=3,
    name="resnet18-cifar100",
    title="ResNet-18 on CIFAR-100",
    claims=(
        "Muon with Newton-Schulz steps ends at a lower training loss than SGD-M, lower with more steps.",
        "At every moment of the wall clock Muon with Newton-Schulz steps is ahead of Muon (SVD).",
    ),
    items=("Figure 4", "Table 4"),
    base=Spec(model="resnet18", dataset="cifar100", lr=0.08, momentum=0.7, smoothing=0.2, batch_size=512, epochs=50),
    axes=(OPTIMIZERS,),
    profiles={
        "smoke": Profile(
            1,
            "an eighth of the channels, 320 training and 100 test images, batches of 40, 4 epochs, 1 run",
            {"model": "resnet18-smoke", "train": 320, "test": 100, "batch_size": 40, "epochs": 4, "evaluate_every": 8},
        ),
        "small": Profile(
            3,
            "a quarter of the channels, 5,000 training and 1,000 test images, batches of 128, 15 epochs, 3 runs",
            {"model": "resnet18-small", "train": 5_000, "test": 1_000, "batch_size": 128, "epochs": 15},
        ),
        "paper": Profile(5),
    },
)
