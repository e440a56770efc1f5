"""Newton-Schulz steps: CifarNet on CIFAR-10 with q = 0, 1, 2, 3, the exact polar factor and SGD-M."""

from __future__ import annotations

from muonlab.lab import Axis, Study
from muonlab.lab.studies._cifarnet import BASE, profiles
from muonlab.lab.studies._points import SGD_M, SVD, muon

STUDY = Study(
    number=1,
    name="q-ablation",
    title="Newton-Schulz steps q, CifarNet on CIFAR-10",
    claims=(
        "Muon with one step already reaches a lower loss than SGD-M at every epoch.",
        "Muon with two or three steps nearly coincides with Muon (SVD) epoch by epoch: the factor χ_q tends to 1 "
        "doubly exponentially (Theorems 1 and 2).",
        "Muon with two or three steps reaches a given test loss in less time than Muon (SVD).",
    ),
    items=("Figure 1", "Figure 3", "Table 3"),
    base=BASE,
    axes=(Axis("optimizer", (SGD_M, muon(0), muon(1), muon(2), muon(3), SVD)),),
    profiles=profiles(),
)
