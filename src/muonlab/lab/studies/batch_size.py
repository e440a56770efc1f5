"""Batch size B = 64…1024 with three Newton-Schulz steps, CifarNet on CIFAR-10."""

from __future__ import annotations

from muonlab.lab import Axis, Point, Study
from muonlab.lab.studies._cifarnet import BASE, profiles

SIZES = (64, 128, 256, 512, 1024)
EVALUATED = 4_096
"""Training images between two evaluations of the small profile, the same for every batch size."""


def _sizes(*sizes: int, images: int | None = None) -> Axis:
    """Return the axis; with ``images`` a run is evaluated after that many training images, else after each epoch."""
    points = []
    for size in sizes:
        settings = {"batch_size": size}
        if images is not None:
            settings["evaluate_every"] = images // size
        points.append(Point(f"B={size}", settings))
    return Axis("batch size", tuple(points))


STUDY = Study(
    number=9,
    name="batch-size",
    title="Batch size B with q = 3, CifarNet on CIFAR-10",
    claims=(
        "The time to a given loss is shortest with a large batch, B = 1024.",
        "A small batch suffers from noise and takes more time.",
    ),
    items=("Figure 10",),
    base=BASE,  # epochs are fixed, so a larger B has fewer updates
    axes=(_sizes(*SIZES),),
    profiles=profiles(
        own_batch_size=True,
        small={"model": "cifarnet-smoke", "train": 10_000, "epochs": 20},  # 180 updates with B = 1024
        small_axes=(_sizes(*SIZES, images=EVALUATED),),
        smoke_axes=(_sizes(32, 64),),
    ),
)
