"""The inequalities of the proofs, checked on problems with known constants."""

from __future__ import annotations

from typing import Any, get_args

from muonlab.lab import Axis, Point, Profile, Study
from muonlab.lab.problems.cell import MethodName, TheorySpec

_NOISES: dict[str, tuple[str, float, int]] = {
    "random_wells": ("gaussian", 2.0, 1),
    "random_quadratic": ("signs", 2.0, 2),
    "scaled_wells": ("gaussian", 1.0, 1),
    "bowl": ("two_point", 1.0, 1),
    "decaying": ("signs", 1.0, 1),
    "ravine": ("gaussian", 1.0, 1),
}


def _still(name: str) -> dict[str, Any]:
    return {"problem": name, "noise": "none", "sigma": 0.0, "batch_size": 1, "runs": 1}


def _noisy(name: str, runs: int) -> dict[str, Any]:
    noise, sigma, batch_size = _NOISES[name]
    return {"problem": name, "noise": noise, "sigma": sigma, "batch_size": batch_size, "runs": runs}


def _plain(*names: str, runs: int) -> tuple[Point, ...]:
    """Return problems with the steps of the paper's theorems: constant rate, heavy-ball momentum."""
    still = [Point(name, _still(name)) for name in names]
    return (*still, *(Point(f"{name} with noise", _noisy(name, runs)) for name in names))


def _canyons() -> tuple[Point, ...]:
    """Return the problem that costs SGD-M a factor √r even when it is tuned to L_F."""
    return tuple(Point(f"canyon of rank {r}", {**_still("canyon"), "rank": r, "steps": 200}) for r in (2, 8, 32, 64))


def _beyond(runs: int) -> tuple[Point, ...]:
    """Return problems with steps and noise that only Theorems A, B and C cover."""
    default = {"lr_schedule": "cosine", "momentum_form": "ema", "nesterov": True}
    target = {**_still("target"), "rank": 2, "weight_decay": 1.8}
    noise = {"noise": "two_point", "sigma": 1.0, "runs": runs}
    quadratic = {**_still("random_quadratic"), "weight_decay": 0.05}
    pareto = {"noise": "pareto", "batch_size": 1, "runs": runs}
    return (
        *(Point(f"{name}, linear rate", {**_still(name), "lr_schedule": "linear"})
          for name in _NOISES),
        *(Point(f"{name} with noise, cosine rate and Nesterov", {**_noisy(name, runs), **default})
          for name in _NOISES),
        Point("target with weight decay", target),
        Point("target with weight decay and noise", {**target, **noise}),
        Point("random_quadratic with weight decay", quadratic),
        *(Point(f"{name} with heavy tails", {"problem": name, "sigma": _NOISES[name][1], **pareto})
          for name in ("random_wells", "bowl")),
    )  # fmt: skip


def _problems(*points: Point) -> Axis:
    return Axis("problem", points)


def _methods(*names: str) -> Axis:
    return Axis("method", tuple(Point(name, {"method": name}) for name in names))


STUDY = Study(
    number=12,
    name="theory-at-work",
    title="Every inequality of the proofs on problems of known constants",
    claims=(
        "With the theorem's step size and momentum the mean of ‖∇f‖_* stays below the bounds of Theorems 1, 3 and 4.",
        "What the proofs claim of one step (Lemma 6), of the momentum and of a whole run holds on every run.",
        "With schedules, Nesterov, weight decay and heavy tails the mean stays below the bounds of Theorems A to C.",
        "On a problem with r gentle slopes SGD-M pays the root of r although it knows L_F, and Muon does not.",
    ),
    items=("Theorem 1", "Theorem 3", "Theorem 4"),
    base=TheorySpec(),
    axes=(_problems(*_plain(*_NOISES, runs=8), *_canyons(), *_beyond(8)), _methods(*get_args(MethodName))),
    profiles={
        "smoke": Profile(
            1,
            "two problems and three methods, 20 steps, 2 runs with noise",
            {"steps": 20},
            (_problems(*_plain("bowl", "random_wells", runs=2)), _methods("sgdm", "muon_q3", "muon_svd")),
        ),
        "small": Profile(
            1,
            "seven optimizers only, 100 steps (canyon: 200), 4 runs with noise",
            {"steps": 100},
            (
                _problems(*_plain(*_NOISES, runs=4), *_canyons(), *_beyond(4)),
                _methods("sgdm", "sgdm_L_F", "muon_q1", "muon_q2", "muon_q3", "muon_svd", "polar_express"),
            ),
        ),
        "paper": Profile(1),
    },
    work="muonlab.lab.problems.cell:measure_inequalities",
)
