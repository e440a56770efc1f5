"""The inequalities of the proofs, checked on problems with known constants."""

from __future__ import annotations

from typing import get_args

from muonlab.lab.problems.cell import MethodName, ProblemName, TheorySpec
from muonlab.lab.study import Axis, Point, Profile, Study

_NOISES = {
    "random_wells": ("gaussian", 2.0, 1),
    "random_quadratic": ("signs", 2.0, 2),
    "scaled_wells": ("gaussian", 1.0, 1),
    "bowl": ("two_point", 1.0, 1),
    "decaying": ("signs", 1.0, 1),
    "ravine": ("gaussian", 1.0, 1),
}


def _still(name: str) -> Point:
    return Point(name, {"problem": name, "noise": "none", "sigma": 0.0, "batch_size": 1, "runs": 1})


def _noisy(name: str, runs: int) -> Point:
    noise, sigma, batch_size = _NOISES[name]
    settings = {"problem": name, "noise": noise, "sigma": sigma, "batch_size": batch_size, "runs": runs}
    return Point(f"{name} with noise", settings)


def _problems(*names: str, runs: int) -> Axis:
    return Axis("problem", (*(_still(name) for name in names), *(_noisy(name, runs) for name in names)))


def _methods(*names: str) -> Axis:
    return Axis("method", tuple(Point(name, {"method": name}) for name in names))


STUDY = Study(
    number=12,
    name="theory-at-work",
    title="Every inequality of the proofs on problems of known constants",
    claims=(
        "With the theorem's step size and momentum the mean of ‖∇f‖_* stays below the bounds of Theorems 1, 3 and 4.",
        "What the proofs claim of one step (Lemma 6), of the momentum and of a whole run holds on every run.",
    ),
    items=("Theorem 1", "Theorem 3", "Theorem 4"),
    base=TheorySpec(),
    axes=(_problems(*get_args(ProblemName), runs=8), _methods(*get_args(MethodName))),
    profiles={
        "smoke": Profile(
            1,
            "two problems and three methods, 20 steps, 2 runs with noise",
            {"steps": 20},
            (_problems("bowl", "random_wells", runs=2), _methods("sgdm", "muon_q3", "muon_svd")),
        ),
        "small": Profile(
            1,
            "the tables' optimizers only, 100 steps, 4 runs with noise",
            {"steps": 100},
            (_problems(*get_args(ProblemName), runs=4), _methods("sgdm", "muon_q1", "muon_q2", "muon_q3", "muon_svd")),
        ),
        "paper": Profile(1),
    },
    work="muonlab.lab.problems.cell:measure",
)
