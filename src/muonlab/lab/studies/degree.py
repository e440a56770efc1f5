"""Degree of the Newton-Schulz polynomial: κ = 1…5 at three steps, CifarNet on CIFAR-10."""

from __future__ import annotations

from muonlab.lab import Axis, Point, Study
from muonlab.lab.studies._cifarnet import BASE, profiles

STUDY = Study(
    number=7,
    name="degree",
    title="Degree κ of the Newton-Schulz polynomial at q = 3, CifarNet on CIFAR-10",
    claims=(
        "A larger degree lowers the loss at a fixed epoch: the residual contracts as δ ← δ^{κ+1} (Lemma 3).",
        "A larger degree makes each step take longer.",
    ),
    items=("Figure 8",),
    base=BASE,
    axes=(Axis("degree", tuple(Point(f"Muon (κ={kappa})", {"kappa": kappa}) for kappa in range(1, 6))),),
    # small batches, so that orthogonalization takes a visible fraction of an update
    profiles=profiles(small={"model": "cifarnet", "train": 2_500, "batch_size": 16, "epochs": 6}),
)
