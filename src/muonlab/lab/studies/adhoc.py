"""The Taylor polynomial of degree 2 against the ad-hoc one, CifarNet on CIFAR-10."""

from __future__ import annotations

from muonlab.lab import Axis, Point, Study
from muonlab.lab.studies._cifarnet import BASE, profiles

STUDY = Study(
    number=10,
    name="adhoc",
    title="Taylor polynomial of degree 2 against the ad-hoc one, CifarNet on CIFAR-10",
    claims=(
        "The ad-hoc polynomial 3.4445 - 4.7750 λ + 2.0315 λ² is a heuristic, for the monotonicity that Lemma 2 rests "
        "on fails for it; only training compares it with the Taylor polynomial of degree 2.",
    ),
    items=("Figure 11",),
    base=BASE,
    axes=(
        Axis(
            "polynomial",
            (Point("NS polynomial", {"polynomial": "taylor"}), Point("Ad-hoc polynomial", {"polynomial": "jordan"})),
        ),
    ),
    profiles=profiles(),
)
