"""The comparison of the paper in two minutes, with certificates, on scikit-learn's digits, which need no download."""

from __future__ import annotations

from muonlab.lab import Profile, Spec, Study
from muonlab.lab.studies._points import OPTIMIZERS

_WHOLE = Profile(3, "scikit-learn's 8×8 digits, layers of 128 and 64, 20 epochs, 3 runs", threads=1)

STUDY = Study(
    number=13,
    name="quickstart",
    title="SGD-M and Muon on scikit-learn's digits, with certificates",
    claims=(
        "Muon with one step already reaches a lower loss than SGD-M at every epoch.",
        "Muon with two or three steps nearly coincides with Muon (SVD) epoch by epoch (Theorems 1 and 2).",
    ),
    items=(),
    base=Spec(
        model="mlp-small",
        dataset="digits",
        lr=0.08,
        momentum=0.7,
        smoothing=0.1,
        batch_size=128,
        epochs=20,
        record_every=10,
    ),
    axes=(OPTIMIZERS,),
    profiles={
        "smoke": Profile(
            1,
            "as the other profiles, with 2 epochs of batches of 64, 1 run",
            {"epochs": 2, "batch_size": 64, "evaluate_every": 10},
        ),
        "small": _WHOLE,
        "paper": _WHOLE,
    },
)
