"""A cell of the study theory-at-work: one method on one problem of known constants, with a row per inequality."""

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

ProblemName = Literal[
    "random_wells", "random_quadratic", "scaled_wells", "bowl", "decaying", "ravine", "target", "canyon"
]  # fmt: skip
MethodName = Literal[
    "sgdm", "sgdm_L_F", "sgdm_paper", "muon_q0", "muon_q1", "muon_q2", "muon_q3", "muon_q4", "muon_q5", "muon_svd",
    "jordan", "polar_express",
]  # fmt: skip

FIXED_BOUNDS = (
    "paper", "sharp", "corrected", "floor", "floor_corrected", "sgdm_paper", "sgdm_sharp", "sgdm_L_F", "trajectory",
)  # fmt: skip
"""Bounds on the mean of ``‖∇f‖_*`` that are known before a run; the others use measurements of it.

``"trajectory"``, for the runs that need Theorems A, B and C, bounds the mean weighted by the learning rates."""


@dataclass(frozen=True)
class TheorySpec(Settings):
    """One method on one problem, with the theorem's η and β; ``seed`` is that of the first run.

    Args:
        problem: a function of :mod:`muonlab.lab.problems.definitions`.
        method: of :data:`muonlab.lab.problems.runs.METHODS`.
        noise: distribution of one sample of the gradient's noise; ``"none"`` needs ``sigma`` 0, ``"pareto"`` needs
            ``batch_size`` 1.
        sigma: its standard deviation; for ``"pareto"``, of infinite variance, ``(E‖ξ‖_F^1.5)^{1/1.5}``.
        batch_size: samples of it per step.
        rank: r of the r×r problems; the random ones are 4×6.
        steps: T, of each run.
        runs: seeds whose mean the bounds in expectation are compared with.
        lr_schedule: of :data:`muonlab.theory.lr_schedules.LR_SCHEDULES`.
        momentum_form: of Muon; SGD-M is always ``"heavy_ball"``.
        nesterov: whether to follow Nesterov's look-ahead.
        weight_decay: λ, decoupled.
    """

    problem: ProblemName = "bowl"
    method: MethodName = "muon_q3"
    noise: Literal["none", "gaussian", "signs", "two_point", "pareto"] = "none"
    sigma: float = 0.0
    batch_size: int = 1
    rank: int = 4
    steps: int = 200
    runs: int = 1
    lr_schedule: Literal["constant", "linear", "cosine", "warmup_cosine", "wsd"] = "constant"
    momentum_form: Literal["heavy_ball", "ema"] = "heavy_ball"
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch_size", "rank", "steps", "runs"):
            _checks.integer(name, getattr(self, name), at_least=1)
        if (_checks.non_negative("sigma", self.sigma) > 0) != (self.noise != "none"):
            raise ValueError(
                f"sigma must be 0 exactly when noise is none, got sigma = {self.sigma} and noise = {self.noise!r}: "
                f"change one of them"
            )
        if self.noise == "pareto" and self.batch_size != 1:
            raise ValueError(f"pareto noise needs a batch_size of 1, got {self.batch_size}: omit it")
        _checks.non_negative("weight_decay", self.weight_decay)
        if self.device != "cpu":
            raise ValueError(f"device must be cpu for float64 problems this small, got {self.device!r}: omit it")


def measure_inequalities(spec: TheorySpec, context: CellContext) -> dict[str, float | int | str | None]:
    """Run a cell and write a row per inequality; return how many are violated, and the least slack.

    A row has ``name``, ``kind`` (``"certain"``: for every step and run, ``"expected"``: for the mean over runs),
    ``measured`` and ``bound`` where the slack is least, that ``slack`` (relative) and whether the inequality ``held``
    everywhere. The least slack is often 0, since at the first step the momentum is the gradient. More informative is
    ``bound_over_measured``, the tightest bound that is known before the run over the measured mean.
    """
    from muonlab.lab.problems.runs import METHODS, run_method

    context.begin({})
    context.progress(0, 1)
    if context.stopping:
        raise Stopped
    problem = build_problem(spec)
    run = run_method(
        problem, METHODS[spec.method], T=spec.steps, seeds=spec.runs, B=spec.batch_size, seed=spec.seed,
        lr_schedule=spec.lr_schedule, momentum_form=spec.momentum_form, nesterov=spec.nesterov,
        weight_decay=spec.weight_decay,
    )  # fmt: skip
    rows = [inequality_row(name, "certain", inequality) for name, inequality in run.certain.items()]
    rows += [inequality_row(name, "expected", inequality) for name, inequality in run.expected.items()]
    for row in rows:
        context.write(row)
    context.progress(1, 1)
    ratios = {name: run.ratio(name) for name in run.expected if name in FIXED_BOUNDS}
    bound = min(ratios, key=ratios.__getitem__, default=None)
    return {
        "inequalities": len(rows),
        "violated": sum(not row["held"] for row in rows),
        "least_slack": min(float(row["slack"]) for row in rows),
        "measured": _finite(float(run.averages.mean())),
        "bound": bound,
        "bound_over_measured": None if bound is None else _finite(ratios[bound]),
        "L": problem.L,
        "D": problem.D,
        "sigma": problem.sigma,
        "eta": run.eta,
        "beta": run.beta,
        "least_rho": _finite(float(run.rho.min())),
    }


def build_problem(spec: TheorySpec) -> KnownProblem:
    """Return the problem of a spec, with its noise."""
    from muonlab.lab.problems.definitions import FAMILIES, canyon, random_quadratic, random_wells

    if spec.problem in FAMILIES:
        problem = FAMILIES[spec.problem](spec.rank)
    elif spec.problem == "canyon":
        problem = canyon(spec.rank, T=spec.steps)
    else:
        problem = random_wells() if spec.problem == "random_wells" else random_quadratic()
    return problem if spec.noise == "none" else problem.with_noise(spec.sigma, spec.noise)


def inequality_row(name: str, kind: str, inequality: Inequality) -> dict[str, Any]:
    """Return the row of an inequality, with the entry where its slack is least."""
    import numpy as np

    slack = inequality.slack()
    index = int(slack.argmin())
    sides = (inequality.left, inequality.right())
    left, right = (np.broadcast_to(side, slack.shape).reshape(-1)[index] for side in sides)
    return {
        "event": "inequality",
        "name": name,
        "kind": kind,
        "measured": _finite(float(left)),
        "bound": _finite(float(right)),
        "slack": _finite(float(slack.min())),
        "held": inequality.holds(),
    }


def _finite(number: float) -> float | None:
    """Return None for NaN and infinity, which JSON does not have."""
    return number if math.isfinite(number) else None
