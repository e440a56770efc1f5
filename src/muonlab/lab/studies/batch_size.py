"""Batch size B = 64…1024 with three Newton-Schulz steps, CifarNet on CIFAR-10."""

from __future__ import annotations

from muonlab.lab.studies._cifarnet import BASE, profiles
from muonlab.lab.study import Axis, Point, Study


def _sizes(*sizes: int) -> Axis:
    return Axis("batch size", tuple(Point(f"B={size}", {"batch_size": size}) for size in sizes))


STUDY = Study(
    number=9,
    name="batch-size",
    title="Batch size B with q = 3, CifarNet on CIFAR-10",
    claims=(
        "The time to a given loss is shortest with a large batch, B = 1024.",
        "A small batch suffers from noise and takes more time.",
    ),
    items=("Figure 10",),
    base=BASE,  # epochs are fixed and the schedule goes by updates, so a larger B has fewer of them
    axes=(_sizes(64, 128, 256, 512, 1024),),
    profiles=profiles(own_batch_size=True, small=(5_000, 8), smoke_axes=(_sizes(32, 64),)),
)
