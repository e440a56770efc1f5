"""A cell of the theory at work: one method on one problem of known constants, every inequality a row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from muonlab import _checks
from muonlab.lab.cell_context import CellContext, Stopped
from muonlab.lab.settings import Settings

if TYPE_CHECKING:
    from muonlab.lab.problems.definitions import KnownProblem
    from muonlab.lab.problems.inequalities import Inequality

ProblemName = Literal["random_wells", "random_quadratic", "scaled_wells", "bowl", "decaying", "ravine"]
MethodName = Literal[
    "sgdm", "sgdm_L_F", "sgdm_paper", "muon_q0", "muon_q1", "muon_q2", "muon_q3", "muon_q4", "muon_q5", "muon_svd",
    "jordan", "polar_express",
]  # fmt: skip

FIXED_BOUNDS = ("paper", "sharp", "corrected", "floor", "floor_corrected", "sgdm_paper", "sgdm_sharp", "sgdm_L_F")
"""Bounds on the mean of ``‖∇f‖_*`` that are known before a run; the others take numbers from it."""


@dataclass(frozen=True)
class TheorySpec(Settings):
    """One method on one problem; η and β are those of the theorem, ``seed`` is that of the first run.

    Args:
        problem: a function of :mod:`muonlab.lab.problems.definitions`.
        method: of :data:`muonlab.lab.problems.runs.METHODS`.
        noise: distribution of one sample of the gradient's noise; ``"none"`` goes with ``sigma`` 0.
        sigma: its standard deviation.
        batch_size: samples of it per step.
        rank: r of the r×r problems; the random ones are 4×6.
        steps: T, of each run.
        runs: seeds whose mean the bounds in expectation are compared with.
    """

    problem: ProblemName = "bowl"
    method: MethodName = "muon_q3"
    noise: Literal["none", "gaussian", "signs", "two_point"] = "none"
    sigma: float = 0.0
    batch_size: int = 1
    rank: int = 4
    steps: int = 200
    runs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch_size", "steps", "runs"):
            _checks.integer(name, getattr(self, name), at_least=1)
        _checks.integer("rank", self.rank, at_least=1)
        if (_checks.non_negative("sigma", self.sigma) > 0) != (self.noise != "none"):
            raise ValueError(
                f"sigma must be 0 exactly where noise is none, got sigma = {self.sigma} and noise = {self.noise!r}: "
                f"change one of them"
            )
        if self.device != "cpu":
            raise ValueError(f"device must be cpu for float64 problems this small, got {self.device!r}: leave it out")


def measure(spec: TheorySpec, desk: CellContext) -> dict[str, float | int | str | None]:
    """Run a cell and write a row per inequality; return how many were violated, and the least slack.

    A row has ``name``, ``kind`` (``"certain"``: of every step and run, ``"expected"``: of the mean over runs),
    ``measured`` and ``bound`` where the slack is least, that ``slack`` (relative) and whether it ``held`` everywhere.
    The least slack of all is often 0: at the first step the momentum is the gradient. What is more telling is how many
    times the measured mean the tightest bound is that was known before the run, ``bound_over_measured``.
    """
    from muonlab.lab.problems.runs import METHODS, run

    desk.begin({})
    desk.progress(0, 1)
    if desk.stopping:
        raise Stopped
    problem = _problem(spec)
    one = run(problem, METHODS[spec.method], T=spec.steps, seeds=spec.runs, B=spec.batch_size, seed=spec.seed)
    rows = [_row(name, "certain", claim) for name, claim in one.certain.items()]
    rows += [_row(name, "expected", claim) for name, claim in one.expected.items()]
    for row in rows:
        desk.write(row)
    desk.progress(1, 1)
    ratios = {name: one.ratio(name) for name in one.expected if name in FIXED_BOUNDS}
    bound = min(ratios, key=ratios.__getitem__, default=None)
    return {
        "inequalities": len(rows),
        "violated": sum(not row["held"] for row in rows),
        "least_slack": min(float(row["slack"]) for row in rows),
        "measured": _finite(float(one.averages.mean())),
        "bound": bound,
        "bound_over_measured": None if bound is None else _finite(ratios[bound]),
        "L": problem.L,
        "D": problem.D,
        "sigma": problem.sigma,
        "eta": one.eta,
        "beta": one.beta,
        "least_rho": _finite(float(one.rho.min())),
    }


def _problem(spec: TheorySpec) -> KnownProblem:
    from muonlab.lab.problems import definitions as problems

    make = getattr(problems, spec.problem)
    still: KnownProblem = make() if spec.problem.startswith("random") else make(spec.rank)
    return still if spec.noise == "none" else still.with_noise(spec.sigma, spec.noise)


def _row(name: str, kind: str, claim: Inequality) -> dict[str, Any]:
    """Return an inequality as a row, at the entry where its slack is least."""
    import numpy as np

    slack = claim.slack()
    place = int(slack.argmin())
    left, right = (np.broadcast_to(side, slack.shape).reshape(-1)[place] for side in (claim.left, claim.right()))
    return {
        "event": "inequality",
        "name": name,
        "kind": kind,
        "measured": _finite(float(left)),
        "bound": _finite(float(right)),
        "slack": _finite(float(slack.min())),
        "held": claim.holds(),
    }


def _finite(number: float) -> float | None:
    """Return a number that JSON has."""
    return number if math.isfinite(number) else None
