"""Best learning rate and momentum by number of Newton-Schulz steps: a prediction of Shulgin et al. (2025)."""

from __future__ import annotations

from muonlab.lab import Axis, Point, Profile, Study
from muonlab.lab.lr_sweep import SweepSpec
from muonlab.lab.studies._points import SVD, muon


def _momenta(*values: float) -> Axis:
    return Axis("momentum", tuple(Point(f"μ={value}", {"momentum": value}) for value in values))


_DIGITS = {"dataset": "digits", "model": "mlp-small"}
_SMALL_NETWORKS = Axis(
    "network",
    (
        Point("digits", {**_DIGITS, "train": 1_437, "test": 360}),
        Point("MNIST", {"dataset": "mnist", "model": "mlp-small", "train": 2_000, "test": 1_000}),
    ),
)

STUDY = Study(
    number=14,
    name="lr-by-steps",
    title="Best learning rate and momentum by Newton-Schulz steps q, MLPs on digits and MNIST",
    claims=(
        "A less precise orthogonalization needs a smaller step (Shulgin et al. 2025, arXiv 2510.19933, abstract).",
        "A less precise orthogonalization needs a larger momentum (the same abstract).",
    ),
    items=(),
    base=SweepSpec(
        model="mlp",
        dataset="digits",
        lr=0.02,
        lr_count=6,
        smoothing=0.1,
        batch_size=64,
        epochs=10,
        record_every=50,
    ),
    axes=(
        Axis("network", (Point("digits", _DIGITS), Point("MNIST", {"dataset": "mnist", "model": "mlp"}))),
        Axis("optimizer", (muon(1), muon(2), muon(3), muon(5), SVD)),
        _momenta(0.2, 0.6, 0.8, 0.9, 0.95),  # averages over 1.25, 2.5, 5, 10 and 20 gradients
    ),
    profiles={
        "smoke": Profile(
            1,
            "the digits network only, 512 training and 100 test images, two optimizers, one momentum, two rates, 20 "
            "updates, 1 run",
            {"epochs": None, "steps": 20, "evaluate_every": 10, "record_every": 10, "lr_count": 2},
            (
                Axis("network", (Point("digits", {**_DIGITS, "train": 512, "test": 100}),)),
                Axis("optimizer", (muon(1), SVD)),
                _momenta(0.8),
            ),
        ),
        "small": Profile(
            3,
            "layers of 128 and 64 on both datasets, of MNIST 2,000 training and 1,000 test images, 200 updates, 3 runs",
            {"epochs": None, "steps": 200, "evaluate_every": 50},
            (_SMALL_NETWORKS,),
            threads=1,
        ),
        "paper": Profile(5),
    },
    work="muonlab.lab.lr_sweep:sweep",
    analysis="muonlab.lab.grid_optima:optima_of",
)
