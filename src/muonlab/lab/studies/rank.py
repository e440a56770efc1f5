"""Growth of the gradient's nuclear norm with the rank of a layer, CifarNet on CIFAR-10."""

from __future__ import annotations

from muonlab.lab import Axis, Point, Study
from muonlab.lab.studies._cifarnet import BASE, profiles
from muonlab.lab.studies._points import SGD_M, SVD, muon


def _ranks(*widths: int) -> Axis:
    return Axis("rank", tuple(Point(f"r={width}", {"first_width": width}) for width in widths))


STUDY = Study(
    number=8,
    name="rank",
    title="Rank dependence of ‖∇f‖_*, CifarNet on CIFAR-10",
    claims=(
        "With SGD-M the epoch mean of ‖∇f‖_* grows with the rank r, with a log-log slope of about 0.3 (Theorem 3).",
        "With Muon, exact or with Newton-Schulz steps, it is nearly flat (Theorems 1 and 4).",
        "Divided by √r it falls with Muon with a slope of about -1/2.",
    ),
    items=("Figure 9", "Table 8"),
    base=BASE.changed({"watch": "groups.0.conv1.weight"}),
    axes=(Axis("optimizer", (SGD_M, SVD, muon(3))), _ranks(16, 32, 64, 128, 216)),
    profiles=profiles(small={"test": 500, "batch_size": 128, "epochs": 6}, smoke_axes=(_ranks(16, 32),)),
    analysis="muonlab.lab.slopes:slopes_of",
)
